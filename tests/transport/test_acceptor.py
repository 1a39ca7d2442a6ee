import logging
import os
import resource
import select
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, repeat

import pytest
from certificates import make_authority, make_certificate, needs_openssl

from phalanx.errors import AuthError, BadFrame, ConfigError, ConnectError, PeerLost, ProtocolError
from phalanx.testing import ManualClock, check_link
from phalanx.transport import Acceptor, Credentials, Deadline, Epoch, StreamLink, Tls, acceptor, call, tcp
from phalanx.wire import Address, Handshake, Purpose

EVERYWHERE = "0.0.0.0"  # noqa: S104 - who may bind to it is what is tested
TOKEN, OTHER_TOKEN = b"a token that is long enough", b"another that is long enough"
WITH_TOKEN, WITHOUT = Credentials(TOKEN), Credentials()
NONCE = bytes(Handshake.NONCE_BYTES)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def with_tls(tmp_path, authority):
    return Credentials(TOKEN, Tls(*make_certificate(tmp_path, authority)))


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, "phalanx")
    return caplog


def open_acceptor(stack, credentials=WITH_TOKEN, purpose=Purpose.COORDINATOR, **options):
    return stack.enter_context(closing(Acceptor("127.0.0.1", 0, credentials, purpose, **options)))


def attend(at, until, seconds=20):
    """Stand at an acceptor until something is so, and return who arrived."""
    arrived, deadline = [], Deadline.after(seconds)
    while not until(arrived):
        assert not deadline.has_passed, f"still waiting; arrived: {arrived}"
        due = deadline.at if at.next_due is None else min(at.next_due, deadline.at)
        poll = select.poll()
        poll.register(at, select.POLLIN)
        poll.poll(max(0, due - time.monotonic()) * 1000)
        arrived += at.arrivals()
    return arrived


def one(arrived):
    return len(arrived) == 1


def knock(stack, at, data=b""):
    """Connect to an acceptor, and say something."""
    connected = stack.enter_context(socket.create_connection((at.address.host, at.address.port)))
    connected.sendall(data)
    return connected


def dial(at, credentials=WITH_TOKEN, purpose=Purpose.COORDINATOR, seconds=20):
    return call([at.address], Deadline.after(seconds), credentials, purpose, whom="the coordinator")


def greet(stack, at, credentials=WITH_TOKEN, purpose=Purpose.COORDINATOR):
    """Both ends of a connection through an acceptor: the caller's, and what arrived."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(dial, at, credentials, purpose)
        arrived = attend(at, lambda arrived: arrived or (calling.done() and calling.exception()))
        connected = stack.enter_context(calling.result())
    return connected, stack.enter_context(arrived[0].socket), arrived[0]


@contextmanager
def attended(at):
    """A acceptor at which somebody stands meanwhile."""
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: [a.socket.close() for a in attend(at, lambda _: is_over.is_set())])
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        with socket.create_connection((at.address.host, at.address.port)):  # so that it looks up
            thread.join()


def origin_of(connected):
    return f"127.0.0.1:{connected.getsockname()[1]}"


@pytest.mark.parametrize("credentials", [WITHOUT, WITH_TOKEN], ids=["without a token", "with a token"])
def test_who_proves_itself_arrives_with_what_it_says_next(stack, credentials):
    at = open_acceptor(stack, credentials)

    calling, called, arrival = greet(stack, at, credentials)
    calling.sendall(b"hello")
    select.select([called], [], [])

    assert called.recv(100) == b"hello"
    assert arrival.origin == origin_of(calling)
    assert arrival.opening == b""
    assert at.next_due is None


def test_who_arrives_never_waits_and_who_called_does(stack):
    calling, called, _ = greet(stack, open_acceptor(stack))

    assert not called.getblocking()
    assert calling.gettimeout() is None


STRANGERS = {
    "garbage": (b"\x00\xff" * 100, "this is not Phalanx"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "this looks like HTTP"),
    "TLS": (b"\x16\x03\x01\x02\x00", "this looks like TLS"),
    "another version": (b"PHLX\x02", "you speak version 2"),
    "another purpose": (Handshake.client(Purpose.LINK, TOKEN, NONCE).begin(), "which is a worker"),
    "no token": (Handshake.client(Purpose.COORDINATOR, None, NONCE).begin(), "asks for a token"),
    "a wrong token": (
        Handshake.client(Purpose.COORDINATOR, OTHER_TOKEN, NONCE).begin() + bytes(32),
        "the token is wrong",
    ),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("piece_bytes", [1000, 1], ids=["at once", "byte by byte"])
def test_a_stranger_is_told_why_it_is_sent_away_and_logged(stack, log, stranger, piece_bytes):
    at = open_acceptor(stack)
    data, words = STRANGERS[stranger]
    calling = knock(stack, at)

    for start in range(0, len(data), piece_bytes):
        if not log.records:
            calling.sendall(data[start : start + piece_bytes])
            at.arrivals()
    attend(at, lambda _: log.records)

    assert f"refused a connection from {origin_of(calling)}: " in log.text
    assert words in log.text
    assert words in calling.makefile("rb").read().decode(errors="replace")
    assert TOKEN.decode() not in log.text
    assert OTHER_TOKEN.decode() not in log.text


@pytest.mark.parametrize("data", [b"", b"PHLX", Handshake.client(Purpose.COORDINATOR, TOKEN, NONCE).begin()])
def test_who_hangs_up_is_logged(stack, log, data):
    at = open_acceptor(stack)
    calling = knock(stack, at, data)
    origin = origin_of(calling)
    calling.close()

    attend(at, lambda _: log.records)

    assert log.messages == [f"refused a connection from {origin}: it hung up before it said who it is"]


@pytest.mark.parametrize("data", [b"", b"PHLX", Handshake.client(Purpose.COORDINATOR, TOKEN, NONCE).begin()])
def test_who_falls_silent_is_sent_away(stack, log, monkeypatch, data):
    monkeypatch.setattr(acceptor, "_PROOF_S", 0.02)
    at = open_acceptor(stack)
    calling = knock(stack, at, data)

    attend(at, lambda _: log.records)

    assert log.messages == [f"refused a connection from {origin_of(calling)}: it did not prove itself within 0.02 s"]
    assert at.next_due is None


def test_who_was_not_attended_to_in_time_gets_its_time_anew(stack, log, monkeypatch):
    monkeypatch.setattr(acceptor, "_PROOF_S", -5.0)
    at = open_acceptor(stack)
    client = Handshake.client(Purpose.COORDINATOR, TOKEN, NONCE)
    calling = knock(stack, at)
    attend(at, lambda _: at.next_due is not None)

    monkeypatch.setattr(acceptor, "_PROOF_S", 10.0)
    calling.sendall(client.begin())
    attend(at, lambda _: at.next_due > time.monotonic())

    assert not log.records


def test_when_too_many_come_the_oldest_that_has_not_proven_itself_goes(stack, log, monkeypatch):
    monkeypatch.setattr(acceptor, "_MOST_UNPROVEN", 2)
    at = open_acceptor(stack)
    callers = [knock(stack, at) for _ in range(3)]

    attend(at, lambda _: log.records)

    words = "it had not proven itself when too many others came"
    assert log.messages == [f"refused a connection from {origin_of(callers[0])}: {words}"]
    assert callers[0].recv(1) == b""


def test_a_thousand_probes_do_not_keep_a_worker_out(stack, log):
    at = open_acceptor(stack)
    for _ in range(1000):
        with socket.create_connection((at.address.host, at.address.port)):
            pass

    calling, _, arrival = greet(stack, at)
    attend(at, lambda _: len(log.records) >= 1000)  # others on this machine may probe, too

    assert arrival.origin == origin_of(calling)


def test_without_descriptors_an_acceptor_pauses_instead_of_spinning(stack, log, monkeypatch):
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.02)
    at = open_acceptor(stack)
    knock(stack, at)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with os.fdopen(os.dup(0)) as last:  # the lowest that is free, so that none is
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)

        assert at.arrivals() == []

    is_readable = bool(select.select([at], [], [], 0)[0])
    due = at.next_due
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    greet(stack, at)

    assert not is_readable
    assert due is not None
    assert "nobody can connect to 127.0.0.1" in log.text
    assert "open files and has them all: raise the limit" in log.text


def test_a_peer_of_another_wire_is_let_in_with_what_was_read_of_it(stack):
    at = open_acceptor(stack, knows_foreign=lambda opening: opening == b"SEED\x00")
    knock(stack, at, b"SEED\x00 and more")

    arrival = attend(at, one)[0]

    with arrival.socket as called:
        assert arrival.opening == b"SEED\x00"
        assert called.recv(100) == b" and more"


def test_who_knows_another_wire_still_lets_in_our_own(stack):
    openings = []
    at = open_acceptor(stack, knows_foreign=openings.append)

    _, _, arrival = greet(stack, at)

    assert arrival.opening == b""
    assert openings == [b"PHLX\x01"]


@pytest.mark.parametrize("host", [EVERYWHERE, "::"])
def test_without_a_token_nobody_listens_to_other_machines(host):
    with pytest.raises(ConfigError, match=r"reachable from other machines.*phalanx token > FILE.*bind to 127.0.0.1"):
        Acceptor(host, 0, WITHOUT, Purpose.LINK)


def test_with_a_token_an_acceptor_may_face_other_machines(stack):
    at = stack.enter_context(closing(Acceptor(EVERYWHERE, 0, WITH_TOKEN, Purpose.LINK)))

    assert at.address.host == EVERYWHERE


def test_closing_an_acceptor_twice_hangs_up_on_who_waits_there(stack):
    at = open_acceptor(stack)
    calling = knock(stack, at)
    attend(at, lambda _: at.next_due is not None)

    at.close()
    at.close()

    assert calling.recv(1) == b""


@pytest.mark.parametrize(
    ("credentials", "purpose", "kind", "words"),
    [
        (Credentials(OTHER_TOKEN), Purpose.COORDINATOR, AuthError, "the token is wrong"),
        (WITHOUT, Purpose.COORDINATOR, AuthError, "pass --token-file"),
        (WITH_TOKEN, Purpose.STAR, ProtocolError, "check the address and port"),
    ],
)
def test_who_is_refused_at_the_only_address_gives_up_at_once(stack, credentials, purpose, kind, words):
    at = open_acceptor(stack)

    with attended(at), pytest.raises(kind, match=words) as caught:
        dial(at, credentials, purpose, seconds=600)

    assert str(caught.value).startswith(f"cannot talk to the coordinator at 127.0.0.1:{at.address.port}: ")
    assert OTHER_TOKEN.decode() not in str(caught.value)


def answering(stack, *answers):
    """An address where somebody else listens, with an answer to each call in turn, and the last one from then on.

    An answer is what to say, or a function that returns it.
    """
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def work():
        with closing(listening):
            for answer in chain(answers, repeat(answers[-1])):
                try:
                    connected = listening.accept()[0]
                except OSError:
                    return
                stack.callback(connected.close)
                connected.sendall(answer() if callable(answer) else answer)

    thread = threading.Thread(target=work)
    thread.start()
    stack.callback(thread.join)
    stack.callback(listening.shutdown, socket.SHUT_RDWR)
    return Address(host="127.0.0.1", port=listening.getsockname()[1])


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n"], ids=["silence", "HTTP"])
def test_a_stranger_at_the_first_address_does_not_hide_the_second(stack, monkeypatch, answer):
    monkeypatch.setattr(tcp, "_ATTEMPT_S", 0.1)
    at = open_acceptor(stack)
    addresses = [answering(stack, answer), at.address]

    with attended(at), call(addresses, Deadline.after(20), WITH_TOKEN, Purpose.COORDINATOR, whom="it") as connected:
        assert connected.getpeername()[1] == at.address.port


def test_a_stranger_at_the_only_address_is_named_at_once(stack):
    address = answering(stack, b"HTTP/1.1 400 Bad Request\r\n")

    with pytest.raises(BadFrame, match=r"cannot talk to rank 4 at 127.0.0.1.*this looks like HTTP") as caught:
        call([address], Deadline.after(600), WITH_TOKEN, Purpose.LINK, whom="rank 4", peer=4)

    assert caught.value.peer == 4


def test_at_the_deadline_a_refusal_tells_more_than_silence(stack):
    clock = ManualClock()
    deadline = Deadline.after(600, clock)

    def refuse():
        clock.advance(600 - 0.03)  # time for another round, in which all are silent
        return b"SSH-2.0-x"

    addresses = [answering(stack, refuse, b""), answering(stack, b"")]

    with pytest.raises(BadFrame, match="this looks like ssh"):
        call(addresses, deadline, WITH_TOKEN, Purpose.LINK, whom="rank 4")


def test_who_never_answers_is_said_to_be_silent(stack):
    with pytest.raises(ConnectError, match="connected, but it does not answer"):
        call([answering(stack, b"")], Deadline.after(0.1), WITH_TOKEN, Purpose.LINK, whom="rank 4")


def test_a_revoked_epoch_ends_a_call(stack):
    epoch = stack.enter_context(closing(Epoch(1)))
    epoch.revoke(PeerLost("rank 4 went away", peer=4))

    with pytest.raises(PeerLost, match="rank 4 went away"):
        call([answering(stack, b"")], Deadline.after(600), WITHOUT, Purpose.LINK, whom="rank 4", epoch=epoch)


@needs_openssl
def test_both_sides_prove_themselves_over_tls(stack, with_tls):
    at = open_acceptor(stack, with_tls)

    calling, called, _ = greet(stack, at, with_tls)
    calling.sendall(b"hello")
    select.select([called], [], [])

    assert called.recv(100) == b"hello"
    assert isinstance(called, ssl.SSLSocket)


@needs_openssl
def test_links_over_tls_keep_the_contract(with_tls):
    def make_pair():
        with ExitStack() as stack:
            calling, called, _ = greet(ExitStack(), open_acceptor(stack, with_tls), with_tls)
        return StreamLink(calling, 1), StreamLink(called, 0)

    check_link(make_pair)


@needs_openssl
@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_who_fails_at_tls_is_logged(stack, log, with_tls, data):
    at = open_acceptor(stack, with_tls)
    calling = knock(stack, at, data)
    origin = origin_of(calling)
    calling.close()

    attend(at, lambda _: log.records)

    assert f"refused a connection from {origin}: " in log.text
    assert ("TLS failed" if data else "it hung up before") in log.text


@needs_openssl
def test_a_certificate_of_another_authority_is_refused(stack, log, tmp_path, with_tls):
    at = open_acceptor(stack, with_tls)
    other = make_certificate(tmp_path, make_authority(tmp_path, "other"), "stranger")
    strangers = Tls(other.cert, other.key, with_tls.tls.ca)  # who knows the server, but is not known to it

    with attended(at), pytest.raises(AuthError, match="TLS failed"):
        dial(at, Credentials(TOKEN, strangers), seconds=600)

    assert "TLS failed" in log.text


@needs_openssl
def test_tls_on_the_caller_s_side_only_is_refused_at_once(stack, with_tls):
    at = open_acceptor(stack)

    with attended(at), pytest.raises(AuthError, match="TLS failed: do both sides use it"):
        dial(at, with_tls, seconds=600)


@needs_openssl
def test_tls_on_the_other_side_only_is_thought_of(stack, with_tls):
    at = open_acceptor(stack, with_tls)

    with attended(at), pytest.raises(ConnectError, match=r"it hung up on us; do both sides use TLS\?"):
        dial(at, seconds=0.5)
