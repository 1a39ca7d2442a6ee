import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import MESSAGE_TYPES, MESSAGES, messages

from phalanx.errors import BadFrame
from phalanx.wire import Address, Cause, Failed, FrameReader, Hello, Kind, Refused, decode, encode

HELLO = {
    "type": "Hello",
    "host": "anvil",
    "addresses": [{"host": "::1", "port": 40001}],
    "pid": 4242,
    "rank": 0,
    "size": 4,
    "job": "night",
}
WELCOME = {
    "type": "Welcome",
    "epoch": 1,
    "rank": 0,
    "key": bytes(16),
    "members": [{"rank": 0, "host": "anvil", "addresses": [], "pid": 1}],
}
WAITING = {
    "type": "Waiting",
    "epoch": 1,
    "ranks": [0, 2],
    "waited_s": [1.5, 0.0],
    "group": "world",
    "sequence": 7,
    "words": "barrier",
    "cpu_s": 3.25,
}
REVOKED = {"type": "Revoked", "epoch": 1, "cause": "left", "rank": 1, "words": "done"}
ADDRESS = HELLO["addresses"][0]
MEMBER = WELCOME["members"][0]


def test_every_message_has_a_strategy():
    assert set(MESSAGES) == set(MESSAGE_TYPES)


@pytest.mark.parametrize("message_type", MESSAGE_TYPES)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_message_comes_back_from_its_frame(message_type, data):
    message = data.draw(MESSAGES[message_type])
    reader = FrameReader()

    reader.feed(encode(message))
    header, payload = reader.next_frame()

    assert header.kind is Kind.CONTROL
    assert decode(payload) == message
    assert reader.next_frame() is None


@pytest.mark.parametrize("fields", [HELLO, WELCOME, WAITING, REVOKED])
def test_fields_come_in_any_order(fields):
    backwards = dict(reversed(fields.items()))

    message = decode(msgspec.msgpack.encode(backwards))

    assert message == decode(msgspec.msgpack.encode(fields))


@settings(deadline=None)
@given(messages, st.data())
def test_a_message_without_one_of_its_fields_is_refused(message, data):
    fields = msgspec.to_builtins(message, builtin_types=(bytes,))
    optional = len(message.__struct_defaults__)
    missing = data.draw(st.sampled_from(list(fields)[: len(fields) - optional]))
    del fields[missing]

    with pytest.raises(BadFrame, match=f"missing required field `{missing}`"):
        decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "fields",
    [
        HELLO | {"token": "x"},
        HELLO | {"addresses": [ADDRESS | {"path": "/"}]},
        WELCOME | {"members": [MEMBER | {"memory": 1}]},
        {"type": "Leave", "why": "bored"},
    ],
)
def test_a_field_we_do_not_know_is_refused(fields):
    with pytest.raises(BadFrame, match="unknown field"):
        decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "fields",
    [
        HELLO | {"host": 5},
        HELLO | {"host": b"anvil"},
        HELLO | {"host": None},
        HELLO | {"pid": "4242"},
        HELLO | {"pid": 1.0},
        HELLO | {"rank": True},
        HELLO | {"addresses": {}},
        HELLO | {"type": "Goodbye"},
        HELLO | {"type": 1},
        WELCOME | {"key": "k" * 16},
        REVOKED | {"cause": "bored"},
        REVOKED | {"cause": 1},
        [],
        "Leave",
        None,
    ],
)
def test_a_wrong_type_is_refused(fields):
    with pytest.raises(BadFrame):
        decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "fields",
    [
        HELLO | {"host": "x" * 4097},
        HELLO | {"job": "x" * 4097},
        HELLO | {"addresses": [ADDRESS] * 65},
        HELLO | {"addresses": [ADDRESS | {"port": 65536}]},
        HELLO | {"addresses": [ADDRESS | {"port": -1}]},
        HELLO | {"rank": 65535},
        HELLO | {"rank": -1},
        HELLO | {"size": 0},
        HELLO | {"size": 65536},
        HELLO | {"pid": -1},
        WELCOME | {"epoch": 2**32},
        WELCOME | {"key": bytes(15)},
        WELCOME | {"key": bytes(17)},
        WELCOME | {"members": [MEMBER] * 65536},
        WAITING | {"ranks": [65535]},
        WAITING | {"ranks": [0] * 65536},
        WAITING | {"sequence": -1},
    ],
)
def test_a_value_out_of_bounds_is_refused(fields):
    with pytest.raises(BadFrame, match="Expected"):
        decode(msgspec.msgpack.encode(fields))


def test_the_longest_text_is_accepted():
    message = Refused("é" * 4096)

    assert decode(encode(message)[64:]) == message


@pytest.mark.parametrize(
    "message",
    [Refused("x" * 4097), Failed(1, Cause.STALLED, 65535, ""), Hello("", (Address("", -1),), 1, None, 1, "")],
)
def test_a_message_that_would_be_refused_is_not_sent(message):
    with pytest.raises(BadFrame):
        encode(message)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(HELLO) + b"\x00",
        msgspec.msgpack.encode(HELLO)[:-1],
        b"\x82\xa4type\xa7Refused\xa6reason\xa2\xff\xff",
        b"\x82\xa1x" + b"\x91" * 5000 + b"\x00\xa4type\xa5Leave",
    ],
    ids=["empty", "no MessagePack", "more than a map", "less than a map", "no UTF-8", "nested too deeply"],
)
def test_a_payload_that_is_no_map_of_ours_is_refused(payload):
    with pytest.raises(BadFrame, match="this is no control message"):
        decode(payload)


@pytest.mark.parametrize(
    "fields", [HELLO | {"\x1b[2Jevil": 1}, HELLO | {"type": "\x1b[2Jevil"}, REVOKED | {"cause": "\x1b[2Jevil"}]
)
def test_an_error_does_not_repeat_what_the_peer_wrote(fields):
    with pytest.raises(BadFrame) as caught:
        decode(msgspec.msgpack.encode(fields))

    assert "evil" not in str(caught.value)
