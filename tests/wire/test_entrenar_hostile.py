"""Whatever a peer of entrenar's wire sends, it gets messages or BadFrame, and no more memory than it paid for."""

import tracemalloc

import pytest
from entrenar_sendings import frame, read, sendings, u8
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.errors import BadFrame
from phalanx.wire.entrenar import AveragedBlockGradient, EntrenarReader, JoinRequest, encode, opening

LIMIT_BYTES = 2**32
SLACK_BYTES = 4096

garbage = st.binary(max_size=100)
framed = st.tuples(st.integers(0, 12), garbage).map(lambda pair: frame(bytes([pair[0]]) + pair[1]))
valid = sendings().map(lambda sending: frame(encode(*sending[:2])[4:] + sending[2]))


@st.composite
def mutated(draw):
    data = bytearray(draw(valid))
    for offset in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[offset] = draw(u8)
    return bytes(data)


hostile = st.lists(valid | mutated() | framed | garbage, min_size=1, max_size=4).map(b"".join)
limits = st.sampled_from([30, 4096, LIMIT_BYTES])


def meanings_of(pieces, limit_bytes):
    """Everything that the pieces mean, up to the first BadFrame; any other error escapes."""
    meanings = []
    try:
        read(EntrenarReader(limit_bytes), pieces, meanings)
    except BadFrame as error:
        meanings.append(str(error))
    return meanings


def peak_bytes_of(data, limit_bytes):
    """The most memory that a reader and what it returns take, when nobody keeps anything."""
    tracemalloc.start()
    try:
        reader = EntrenarReader(limit_bytes)
        while data:
            size_bytes = min(reader.data_bytes or reader.wants, len(data))
            reader.took(size_bytes) if reader.data_bytes else reader.feed(data[:size_bytes])
            data = data[size_bytes:]
    except BadFrame:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak_bytes


def check(data, limit_bytes):
    at_once = meanings_of([data], limit_bytes)
    by_bytes = meanings_of([bytes([byte]) for byte in data], limit_bytes)

    assert repr(at_once) == repr(by_bytes)  # a loss that is NaN is not equal to itself
    assert peak_bytes_of(memoryview(data), limit_bytes) <= len(data) + SLACK_BYTES


@settings(deadline=None)
@given(hostile, limits)
def test_hostile_bytes_raise_only_bad_frame_and_cost_only_what_was_sent(data, limit_bytes):
    check(data, limit_bytes)


@pytest.mark.slow
@settings(deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
@given(hostile, limits)
def test_hostile_bytes_in_a_thousand_ways(data, limit_bytes):
    check(data, limit_bytes)


WIDE = "x" * 124 + "\U0001f600"
LONGEST_JOIN = encode(JoinRequest(WIDE, 0, WIDE))
LONGEST_BLOCK = opening(AveragedBlockGradient(0, 0, (10**6,) * 16, 16 * 10**6))
LONGEST = [LONGEST_JOIN, LONGEST_BLOCK, LONGEST_JOIN[:-1] + b"x", LONGEST_BLOCK[:-1] + b"x"]


@pytest.mark.parametrize("data", LONGEST, ids=["join", "block", "refused join", "refused block"])
def test_the_longest_fields_cost_little_more_than_what_was_sent(data):
    check(data, LIMIT_BYTES)
