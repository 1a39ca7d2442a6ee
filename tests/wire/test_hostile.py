"""Whatever a peer sends, it gets frames, messages or BadFrame, and no more memory than it paid for."""

import tracemalloc
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_strategies import frames, headers, messages

from phalanx.errors import BadFrame
from phalanx.wire import HEADER_BYTES, FrameReader, Kind, decode, encode

SLACK_BYTES = 64 * 1024

valid = frames().map(lambda frame: frame[0].pack() + frame[1]) | messages.map(encode)
garbage = st.binary(max_size=300)
oversized = st.tuples(headers(), garbage).map(lambda pair: pair[0].pack() + pair[1])


@st.composite
def mutated(draw):
    """A valid frame with some bytes changed, half of the time with a checksum that fits, so that it gets further."""
    data = bytearray(draw(valid))
    for offset in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[offset] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        data[HEADER_BYTES - 4 : HEADER_BYTES] = crc32(data[: HEADER_BYTES - 4]).to_bytes(4, "little")
    return bytes(data)


@st.composite
def truncated(draw):
    data = draw(valid)
    return data[: draw(st.integers(0, len(data) - 1))]


@st.composite
def headed(draw):
    """A valid header around a payload that need not be."""
    header, payload = draw(frames(size_bytes=300))
    return header.pack() + payload


hostile = st.lists(valid | garbage | oversized | mutated() | truncated() | headed(), min_size=1, max_size=4)


def read(reader, pieces):
    """Everything that the pieces mean, up to the first BadFrame; any other error escapes."""
    meanings = []
    try:
        for piece in pieces:
            reader.feed(piece)
            for header, payload in iter(reader.next_frame, None):
                meanings.append(decode(payload) if header.kind is Kind.CONTROL else payload)
    except BadFrame:
        pass
    return meanings


def refusal(payload):
    try:
        decode(payload)
    except BadFrame as error:
        return str(error)
    return ""


def check(pieces, limit_bytes):
    data = b"".join(pieces)
    tracemalloc.start()
    try:
        at_once = read(FrameReader(limit_bytes), [data])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    by_bytes = read(FrameReader(limit_bytes), [bytes([byte]) for byte in data])

    assert at_once == by_bytes
    assert peak_bytes < SLACK_BYTES + len(data)


limits = st.sampled_from([100, 4096, 2**63])


@settings(deadline=None, max_examples=100)
@given(hostile, limits)
def test_hostile_bytes_raise_only_bad_frame_and_cost_only_what_was_sent(pieces, limit_bytes):
    check(pieces, limit_bytes)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit_bytes", [100, 4096, 2**63])
@settings(deadline=None, max_examples=800, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=hostile)
def test_hostile_bytes_in_thousands_of_ways(pieces, limit_bytes):
    check(pieces, limit_bytes)


@settings(deadline=None, max_examples=100)
@given(garbage | messages.map(lambda message: encode(message)[HEADER_BYTES:]), st.data())
def test_a_hostile_payload_raises_only_bad_frame(payload, data):
    mutated_payload = bytearray(payload)
    if payload:
        mutated_payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    assert refusal(bytes(mutated_payload)).isprintable()


@pytest.mark.parametrize(
    "claim",
    [
        b"\x82\xa4type\xa7Waiting\xa5ranks\xdd\x00\x00\xff\xff",
        b"\x82\xa4type\xa7Waiting\xa5ranks\xdd\xff\xff\xff\xff",
        b"\x82\xa4type\xa7Welcome\xa7members\xdd\x00\x00\xff\xff",
        b"\x82\xa4type\xa7Welcome\xa3key\xc6\xff\xff\xff\xff",
        b"\x82\xa4type\xa7Refused\xa6reason\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa4type\xa5Leave",
    ],
)
def test_a_length_claimed_inside_a_message_allocates_nothing(claim):
    tracemalloc.start()

    with pytest.raises(BadFrame):
        decode(claim)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 16 * 1024
