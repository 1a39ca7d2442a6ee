"""Both ends of the handshake, back to back: what one says, the other hears."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import AuthError, BadFrame, ProtocolError
from phalanx.wire import MAGIC, VERSION, Handshake, Purpose

TOKEN, OTHER_TOKEN = b"a token of some length", b"another token of some length"
CLIENT_NONCE, SERVER_NONCE, LATER_NONCE = b"c" * 32, b"s" * 32, b"l" * 32
OPEN_BYTES, CHALLENGE_BYTES, PROOF_BYTES, VERDICT_BYTES = 40, 40, 32, 40


def make_client(token=TOKEN, purpose=Purpose.COORDINATOR, nonce=CLIENT_NONCE):
    return Handshake.client(purpose, token, nonce)


def make_server(token=TOKEN, purpose=Purpose.COORDINATOR, nonce=SERVER_NONCE):
    return Handshake.server(purpose, token, nonce)


def feed(handshake, data, most=None):
    """Feed as much as is wanted, ``most`` bytes at a time; return what comes back, and what was not wanted."""
    said = b""
    while data and handshake.wanted:
        count = min(handshake.wanted, most or len(data))
        said += handshake.feed(data[:count])
        data = data[count:]
    return said, data


def shake(client, server, most=None, change=lambda _, data: data):
    """Carry messages between both until neither says more; return them as ``change`` left them."""
    sent, data = [], client.begin()
    while data:
        sent.append(change(len(sent), data))
        data, _ = feed((server, client)[(len(sent) - 1) % 2], sent[-1], most)
    return sent


def assert_both_fail(client, server, kind, words):
    shake(client, server)

    for side in (client, server):
        assert type(side.error) is kind
        assert str(side.error) == words
        assert not side.is_done
        assert side.wanted == 0


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("most", [None, 1, 7])
def test_two_sides_with_the_same_token_prove_themselves(token, purpose, most):
    client, server = make_client(token, purpose), make_server(token, purpose)

    sent = shake(client, server, most)

    assert client.is_done
    assert server.is_done
    assert [len(message) for message in sent] == [OPEN_BYTES, CHALLENGE_BYTES, PROOF_BYTES, VERDICT_BYTES]


def test_the_messages_are_these_bytes():
    sent = shake(make_client(None), make_server(None))

    assert sent[0] == b"PHLX\x01\x01\x00\x00" + CLIENT_NONCE
    assert sent[1] == b"PHLX\x01\x00\x00\x00" + SERVER_NONCE
    assert sent[2].hex() == "2f97e87db62295a3ff9d0013f5d8832e511f1f2498f4d7b3ac4fcff4158e7d39"
    assert sent[3][:8] == b"PHLX\x01\x00\x20\x00"
    assert sent[3][8:].hex() == "5c905fe6a3e0d6d2ec29c70fc0860db8f1ab6afe998996f6e49fa0ac10165f81"


def test_nothing_that_follows_the_handshake_is_wanted():
    client, server = make_client(), make_server()
    challenge, _ = feed(server, client.begin())
    proof, _ = feed(client, challenge)

    verdict, left = feed(server, proof + b"a frame")
    _, left_there = feed(client, verdict + b"an answer")

    assert (left, left_there) == (b"a frame", b"an answer")


def test_a_stranger_is_judged_by_its_first_five_bytes():
    assert make_server().wanted == 5
    assert make_client().wanted == 5


def test_a_wrong_token_is_refused_on_both_sides():
    words = "the token is wrong: pass the one that this coordinator was started with"

    assert_both_fail(make_client(OTHER_TOKEN), make_server(TOKEN), AuthError, words)


def test_a_worker_without_a_token_is_told_how_to_pass_one():
    words = "this coordinator asks for a token: pass --token-file, or set PHALANX_TOKEN_FILE or PHALANX_TOKEN"

    assert_both_fail(make_client(None), make_server(TOKEN), AuthError, words)


def test_a_server_without_a_token_refuses_who_has_one():
    words = "this worker has no token, and you have one: start it with yours, or come without"

    assert_both_fail(make_client(TOKEN, Purpose.LINK), make_server(None, Purpose.LINK), AuthError, words)


def test_who_came_for_something_else_is_told_what_is_here():
    words = "this worker is not what you look for, which is a gradient server: check the address and port"

    assert_both_fail(make_client(purpose=Purpose.STAR), make_server(purpose=Purpose.LINK), ProtocolError, words)


def test_who_speaks_another_version_is_told_so():
    server = make_server()

    reply, _ = feed(server, MAGIC + bytes([VERSION + 1]))

    words = "this is Phalanx wire version 1, you speak version 2: install the same release on all machines"
    assert type(server.error) is ProtocolError
    assert str(server.error) == words
    assert reply == b"PHLX\x01\x01" + len(words).to_bytes(2, "little") + words.encode()


def test_who_is_answered_in_another_version_says_so():
    client = make_client()

    feed(client, MAGIC + bytes([VERSION + 1]))

    assert type(client.error) is BadFrame
    assert "they speak version 2 of the Phalanx wire, we speak version 1" in str(client.error)


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"SSH-2.0-x", "ssh"),
        (b"\x00\xff\x00\xff\x00", "not Phalanx"),
    ],
)
@pytest.mark.parametrize("make", [make_client, make_server])
def test_strangers_are_named(make, opening, words):
    handshake = make()

    feed(handshake, opening)

    assert type(handshake.error) is BadFrame
    assert words in str(handshake.error)


def test_a_stranger_is_told_why_it_is_sent_away():
    server = make_server()

    reply, _ = feed(server, b"\x16\x03\x01\x02\x00")

    assert str(server.error).encode() in reply


def test_a_proof_that_was_heard_before_proves_nothing():
    heard = shake(make_client(), make_server())
    server = make_server(nonce=LATER_NONCE)

    feed(server, heard[0])
    feed(server, heard[2])

    assert type(server.error) is AuthError


def test_a_verdict_that_was_heard_before_proves_nothing():
    heard = shake(make_client(), make_server())
    client = make_client(nonce=LATER_NONCE)

    feed(client, heard[1])
    feed(client, heard[3])

    assert type(client.error) is AuthError
    assert str(client.error) == "this coordinator does not know the token: it is not the one you look for"


def test_a_proof_that_is_sent_back_proves_nothing():
    client = make_client()
    challenge, _ = feed(make_server(nonce=CLIENT_NONCE), client.begin())
    proof, _ = feed(client, challenge)

    feed(client, b"PHLX\x01\x00\x20\x00" + proof)

    assert type(client.error) is AuthError


@pytest.mark.parametrize(
    ("message", "bits"),
    [(0, 8 * OPEN_BYTES), (1, 8 * CHALLENGE_BYTES), (2, 8 * PROOF_BYTES), (3, 8 * VERDICT_BYTES)],
    ids=["open", "challenge", "proof", "verdict"],
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_bit_that_is_changed_on_the_way_is_noticed(token, message, bits):
    def flip(bit):
        def change(number, data):
            if number != message:
                return data
            return (int.from_bytes(data, "little") ^ (1 << bit)).to_bytes(len(data), "little")

        return change

    for bit in range(bits):
        client, server = make_client(token), make_server(token)

        shake(client, server, change=flip(bit))

        assert not client.is_done, f"bit {bit}"
        assert server.is_done == (message == 3), f"bit {bit}"


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from([make_client, make_server]))
@settings(deadline=None)
def test_whatever_a_stranger_says_it_proves_nothing(pieces, make):
    handshake = make()

    for piece in pieces:
        feed(handshake, piece)

    assert not handshake.is_done
    assert handshake.wanted <= 1024


@given(status=st.integers(3, 255), detail=st.integers(0, 2**16 - 1))
@settings(deadline=None)
def test_an_answer_of_an_unknown_status_is_refused(status, detail):
    client = make_client()

    feed(client, MAGIC + bytes([VERSION, status]) + detail.to_bytes(2, "little"))

    assert type(client.error) is BadFrame


@pytest.mark.parametrize("length", [0, 1025, 65535])
def test_a_refusal_has_words_and_not_too_many(length):
    client = make_client()

    feed(client, MAGIC + bytes([VERSION, 1]) + length.to_bytes(2, "little"))

    assert type(client.error) is BadFrame


def test_the_words_of_a_stranger_cannot_fool_a_terminal():
    client, words = make_client(), b"\x1b[2Jno\n\xff"

    feed(client, MAGIC + bytes([VERSION, 1]) + len(words).to_bytes(2, "little") + words)

    assert str(client.error) == "\N{SYMBOL FOR ESCAPE}[2Jno\N{SYMBOL FOR LINE FEED}\N{REPLACEMENT CHARACTER}"


@given(token=st.binary(min_size=16, max_size=64), wrong=st.binary(min_size=16, max_size=64))
@settings(deadline=None)
def test_no_message_and_no_error_holds_the_token(token, wrong):
    client, server = make_client(token), make_server(wrong)

    sent = shake(client, server)

    said = b"".join(sent) + f"{client!r} {server!r} {client.error} {server.error}".encode()
    assert token not in said
    assert wrong not in said
