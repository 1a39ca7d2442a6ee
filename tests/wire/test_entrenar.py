import struct
import tracemalloc
from dataclasses import replace
from typing import get_args

import pytest
from entrenar_sendings import MESSAGES, frame, read, sendings
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import BadFrame, ConfigError
from phalanx.wire.entrenar import (
    AveragedBlockGradient,
    AveragedGradient,
    AveragedNonBlockGradient,
    BlockGradientPayload,
    EntrenarBegan,
    EntrenarEnded,
    EntrenarReader,
    GradientPayload,
    Heartbeat,
    JoinAccepted,
    JoinRequest,
    Message,
    NonBlockGradientPayload,
    ShardAssignment,
    Shutdown,
    closing,
    encode,
    is_opening,
    opening,
)

GOLDEN = [
    (JoinRequest("node-é-1", 2, "cuda"), [], "0000001a01090000006e6f64652dc3a92d31020000000400000063756461"),
    (JoinAccepted(1, 3), [], "00000009020100000003000000"),
    (ShardAssignment(42, 100, 200), [], "00000019032a000000000000006400000000000000c800000000000000"),
    (
        GradientPayload(10, 2, 3, 0.5, 8, 10),
        [1, -2.5, 0],
        "00000035040a000000000000000200000003000000000000000000803f000020c0000000000000003f08000000000000000a00000000000000",
    ),
    (
        AveragedGradient(5, 2, 0.75),
        [0.5, 1],
        "0000001d05050000000000000002000000000000000000003f0000803f0000403f",
    ),
    (Heartbeat("lambda-5678", 1709000000000), [], "00000018060b0000006c616d6264612d35363738008256e88d010000"),
    (Shutdown(), [], "0000000107"),
    (
        BlockGradientPayload(7, 1, 5, 24, (2, 1), 3),
        [1, 2, 3],
        "0000003508070000000000000001000000050000001800000002000000020000000100000003000000000000000000803f0000004000004040",
    ),
    (
        AveragedBlockGradient(7, 5, (2, 1), 3),
        [1.5, 2.5, 3.5],
        "0000002d0907000000000000000500000002000000020000000100000003000000000000000000c03f0000204000006040",
    ),
    (NonBlockGradientPayload(9, 1, 2, 1), [4], "0000001a0a09000000000000000100000002010000000000000000008040"),
    (AveragedNonBlockGradient(9, 2, 1), [-4], "000000160b0900000000000000020100000000000000000080c0"),
]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def test_every_message_has_a_golden_frame_and_is_drawn():
    assert [type(message) for message, _, _ in GOLDEN] == list(get_args(Message)) == list(MESSAGES)


@pytest.mark.parametrize(("message", "gradients", "golden"), GOLDEN)
def test_a_golden_frame_is_encoded(message, gradients, golden):
    assert encode(message, floats(gradients)).hex() == golden


@pytest.mark.parametrize(("message", "gradients", "golden"), GOLDEN)
def test_a_golden_frame_is_read(message, gradients, golden):
    meanings = []

    read(EntrenarReader(), [bytes.fromhex(golden)], meanings)

    assert meanings == [(message, floats(gradients))]


@settings(deadline=None, max_examples=50)
@given(st.lists(sendings(), max_size=4), st.lists(st.integers(1, 50)))
def test_messages_are_read_as_they_were_sent_however_their_bytes_are_cut(sent, cuts):
    data = b"".join(frame(encode(message, gradients)[4:] + extra) for message, gradients, extra in sent)
    pieces = []
    for cut in [*cuts, len(data)]:
        pieces.append(data[:cut])
        data = data[cut:]
    meanings = []

    read(EntrenarReader(), pieces, meanings)

    assert meanings == [(message, gradients) for message, gradients, _ in sent]


def test_opening_gradients_and_closing_make_the_frame():
    message, gradients = GradientPayload(10, 2, 3, 0.5, 8, 10), floats([1, 2, 3])

    parts = opening(message) + gradients + closing(message)

    assert parts == encode(message, gradients)
    assert closing(Shutdown()) == b""


def test_a_receiver_knows_the_fields_before_the_gradients_when_they_begin():
    message = GradientPayload(10, 2, 3, 0.5, 8, 10)
    reader = EntrenarReader()

    events = [reader.feed(bytes([byte])) for byte in opening(message)]

    assert events[:-1] == [None] * (len(events) - 1)
    assert events[-1] == EntrenarBegan(replace(message, loss=0, correct=0, total=0))
    assert (reader.data_bytes, reader.wants) == (12, 0)


def test_a_receiver_that_takes_the_gradients_in_parts_is_told_when_the_message_ends():
    message = AveragedNonBlockGradient(9, 2, 3)
    reader = EntrenarReader()
    read(reader, [opening(message)], [])

    events = [reader.took(5), reader.took(0), reader.took(7)]

    assert events == [None, None, EntrenarEnded(message)]
    assert (reader.data_bytes, reader.wants) == (0, 4)


def test_a_message_without_gradients_ends_without_having_begun():
    message = AveragedNonBlockGradient(9, 2, 0)
    reader = EntrenarReader()

    events = [reader.feed(bytes([byte])) for byte in opening(message)]

    assert events == [None] * (len(events) - 1) + [EntrenarEnded(message)]


def test_gigabytes_of_gradients_pass_the_reader_without_memory():
    message = NonBlockGradientPayload(0, 0, 0, 2**29)
    reader = EntrenarReader(2**32)
    tracemalloc.start()

    read(reader, [opening(message)], [])
    event = reader.took(4 * message.elements)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert event == EntrenarEnded(message)
    assert peak_bytes < 4096


def test_what_follows_a_message_in_its_frame_is_skipped_in_bounded_memory():
    reader = EntrenarReader(2**32)
    reader.feed((2**20).to_bytes(4, "big"))
    reader.feed(b"\x07")
    most = skipped = 0

    while skipped < 2**20 - 1:
        most = max(most, reader.wants)
        skipped += reader.wants
        event = reader.feed(bytes(reader.wants))

    assert skipped == 2**20 - 1
    assert event == EntrenarEnded(Shutdown())
    assert most <= 4096


def test_of_a_long_text_the_beginning_is_kept_in_bounded_memory():
    reader = EntrenarReader()
    rest = memoryview(encode(JoinRequest("é" * 1_000_000, 1, "cpu")))
    tracemalloc.start()

    while rest:
        wanted = reader.wants
        event = reader.feed(rest[:wanted])
        rest = rest[wanted:]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert event == EntrenarEnded(JoinRequest("é" * 256, 1, "cpu"))
    assert peak_bytes < 16 * 1024


@pytest.mark.parametrize("at", [0, 1022, 1023, 1024, 5000])
def test_a_flaw_in_a_long_text_is_found_where_it_is(at):
    text = bytearray(b"x" * 6000)
    text[at] = 0xFF
    frame = encode(JoinRequest("x" * 6000, 1, "cpu")).replace(b"x" * 6000, bytes(text))

    with pytest.raises(BadFrame, match=rf"a text of 6000 bytes is not UTF-8: invalid start byte at byte {at}$"):
        read(EntrenarReader(), [frame], [])


CROOKED = {
    "length 0": ("00000000", "has 1 to 4096 bytes here, not 0"),
    "length over the limit": ("00001001", "has 1 to 4096 bytes here, not 4097"),
    "HTTP": (b"GET / HTTP/1.1\r\n".hex(), "has 1 to 4096 bytes here, not 1195725856"),
    "tag 0": ("0000000100", "tag 0x00 is unknown"),
    "tag 12": ("000000010c", "tag 0x0c is unknown: messages of entrenar have 0x01 to 0x0b"),
    "a frame too short for its message": ("0000000802", "a JoinAccepted has at least 8 bytes after its tag, not 7"),
    "defect 14, 45 bytes": (
        "0000002d04" + "00" * 12 + "0000000000000040",
        "a GradientPayload has 4611686018427387904 elements, which end",
    ),
    "defect 14, 26 bytes": (
        "0000001a0a" + "00" * 13 + "0000000000000040",
        "a NonBlockGradientPayload has 4611686018427387904 elements, which end",
    ),
    "gradients over the fields behind them": ("0000002d04" + "00" * 12 + "0200000000000000", "end 4 bytes after"),
    "a text that leaves its frame": ("0000000d0105000000", "has 5 UTF-8 bytes, which end 5 bytes after its frame"),
    "a text too long": ("000010000101e1f505", "at most 100000000 UTF-8 bytes in a field, not 100000001"),
    "a text that is not UTF-8": ("0000000f0602000000c328", "a text of 2 bytes is not UTF-8: invalid continuation"),
    "too many components": (
        "000010000900000000000000000000000011000000",
        "at most 16 component sizes in a field, not 17",
    ),
    "components that do not add up": (
        "0000002109" + "00" * 12 + "01000000" + "03000000" + "0100000000000000",
        "the component sizes add up to 3 and must add up to 1",
    ),
}


@pytest.mark.parametrize(("data", "words"), CROOKED.values(), ids=CROOKED)
def test_a_crooked_frame_is_refused_in_words(data, words):
    with pytest.raises(BadFrame) as error:
        read(EntrenarReader(limit_bytes=4096), [bytes.fromhex(data)], [])

    assert words in str(error.value)


def test_a_frame_of_a_peer_that_has_joined_may_be_longer():
    reader = EntrenarReader(100)
    message = AveragedGradient(0, elements=1000)
    meanings = []

    reader.raise_limit(5000)
    reader.raise_limit(0)
    read(reader, [encode(message, bytes(4000))], meanings)

    assert meanings == [(message, bytes(4000))]


@pytest.mark.parametrize("call", [lambda r: r.feed(b"x"), lambda r: r.took(1), lambda r: r.raise_limit(9)])
def test_after_a_bad_frame_every_call_raises_its_words_again(call):
    reader = EntrenarReader()
    with pytest.raises(BadFrame) as first:
        reader.feed(b"GET ")

    with pytest.raises(BadFrame) as again:
        call(reader)

    assert str(again.value) == str(first.value)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (NonBlockGradientPayload(0, 0, 0, 2**30), "a frame has less than 4294967296 bytes, not 4294967318"),
        (BlockGradientPayload(0, 0, 0, 1, (2, 2), 5), "the component sizes add up to 4 and must add up to 5"),
        (AveragedBlockGradient(0, 0, (1,) * 17, 17), "at most 16 component sizes in a field, not 17"),
        (Heartbeat("\ud800", 0), "does not fit the wire of entrenar: .* surrogates not allowed"),
        (JoinAccepted(2**32, 1), "JoinAccepted, worker id 4294967296, total workers 1 does not fit"),
        (AveragedGradient(0, 0, 1e300), "does not fit the wire of entrenar: float too large"),
    ],
)
def test_a_message_that_the_wire_cannot_carry_is_refused(message, words):
    with pytest.raises(ConfigError, match=words):
        opening(message)


def test_gradients_of_another_size_than_the_message_says_are_refused():
    with pytest.raises(ConfigError, match="its gradients have 8 bytes, not 4"):
        encode(AveragedGradient(0, elements=2), bytes(4))


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (encode(JoinRequest("", 0, ""))[:5], True),
        ((100_000_000).to_bytes(4, "big") + b"\x01", True),
        ((100_000_001).to_bytes(4, "big") + b"\x01", False),
        ((12).to_bytes(4, "big") + b"\x01", False),
        (encode(Heartbeat("a node", 0))[:5], False),
        (b"PHLX\x01", False),
        (b"GET /", False),
    ],
)
def test_only_a_join_request_opens_a_connection(first, expected):
    assert is_opening(first) is expected


def test_a_message_is_legible_however_long_and_whatever_a_peer_wrote():
    join = JoinRequest("\x1b[31m" + "x" * 200, 2, "cuda")
    block = BlockGradientPayload(7, 1, 5, 24, (10**6,) * 9, 9 * 10**6)

    assert str(join) == r"JoinRequest, node id '\x1b[31m" + "x" * 31 + "..., gpu count 2, backend 'cuda'"
    assert len(str(block)) < 160
    assert str(Shutdown()) == "Shutdown"
