import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import frames

from phalanx.buffers import DType
from phalanx.errors import BadFrame
from phalanx.wire import Collective, FrameReader, Header, Kind, Signature, Tag

LIMIT_BYTES = 4096


def header(length):
    return Header(Kind.DATA, Tag(1, 2, 3), Signature(Collective.ALL_GATHER, DType.U8, length), length)


def read_all(reader):
    return list(iter(reader.next_frame, None))


@settings(deadline=None, max_examples=50)
@given(st.lists(frames(), max_size=5))
def test_frames_fed_one_byte_at_a_time_are_those_fed_at_once(sent):
    data = b"".join(header.pack() + payload for header, payload in sent)
    at_once, by_bytes = FrameReader(), FrameReader()

    at_once.feed(data)
    read_at_once = read_all(at_once)
    read_by_bytes = []
    for offset in range(len(data)):
        by_bytes.feed(data[offset : offset + 1])
        read_by_bytes += read_all(by_bytes)

    assert read_at_once == sent
    assert read_by_bytes == sent


@settings(deadline=None, max_examples=50)
@given(st.lists(frames(), max_size=5), st.lists(st.integers(1, 200)))
def test_frames_do_not_depend_on_how_their_bytes_are_cut(sent, sizes):
    data = b"".join(header.pack() + payload for header, payload in sent)
    reader = FrameReader()
    read = []

    for size in [*sizes, len(data)]:
        reader.feed(data[:size])
        data = data[size:]
        read += read_all(reader)

    assert read == sent


def test_a_payload_does_not_change_with_what_is_fed_later():
    reader = FrameReader()
    data = bytearray(header(3).pack() + b"abc")

    reader.feed(memoryview(data))
    data[:] = bytes(len(data))
    _, payload = reader.next_frame()
    reader.feed(b"x" * 100)

    assert payload == b"abc"


def test_a_payload_as_long_as_the_limit_is_read():
    reader = FrameReader(LIMIT_BYTES)

    reader.feed(header(LIMIT_BYTES).pack() + bytes(LIMIT_BYTES))

    assert reader.next_frame() == (header(LIMIT_BYTES), bytes(LIMIT_BYTES))


def test_a_claim_over_the_limit_is_refused_before_any_payload():
    reader = FrameReader(LIMIT_BYTES)

    reader.feed(header(LIMIT_BYTES + 1).pack())

    with pytest.raises(BadFrame, match="over the limit of 4096 bytes: data, epoch 1"):
        reader.next_frame()


def test_a_raised_limit_lets_longer_payloads_in():
    reader = FrameReader(LIMIT_BYTES)

    reader.raise_limit(LIMIT_BYTES + 1)
    reader.feed(header(LIMIT_BYTES + 1).pack() + bytes(LIMIT_BYTES + 1))

    assert reader.next_frame() == (header(LIMIT_BYTES + 1), bytes(LIMIT_BYTES + 1))


def test_a_limit_is_never_lowered():
    reader = FrameReader(LIMIT_BYTES)

    reader.raise_limit(0)
    reader.feed(header(LIMIT_BYTES).pack())

    assert reader.next_frame() is None


@pytest.mark.parametrize("call", [lambda r: r.feed(b"x"), lambda r: r.next_frame(), lambda r: r.raise_limit(9)])
def test_after_a_bad_frame_every_call_raises_its_words_again(call):
    reader = FrameReader()
    reader.feed(b"SSH-2.0-OpenSSH_9.7\r\n")
    with pytest.raises(BadFrame) as first:
        reader.next_frame()

    with pytest.raises(BadFrame) as again:
        call(reader)

    assert str(again.value) == str(first.value)


def test_frames_before_a_bad_one_are_still_read():
    reader = FrameReader()

    reader.feed(header(3).pack() + b"abc" + b"garbage")

    assert reader.next_frame() == (header(3), b"abc")
    with pytest.raises(BadFrame):
        reader.next_frame()


def test_a_stranger_is_refused_before_it_has_sent_a_whole_header():
    reader = FrameReader()

    reader.feed(b"GET /")

    with pytest.raises(BadFrame, match="this looks like HTTP"):
        reader.next_frame()


def test_a_claimed_length_allocates_nothing():
    reader = FrameReader(limit_bytes=2**63)
    data = header(2**62).pack() + b"all that ever comes"
    tracemalloc.start()

    reader.feed(data)
    frame = reader.next_frame()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert frame is None
    assert peak_bytes < 16 * 1024


def test_a_refused_reader_lets_go_of_what_it_held():
    reader = FrameReader()
    tracemalloc.start()

    reader.feed(b"x" * 2**20)
    with pytest.raises(BadFrame):
        reader.next_frame()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held_bytes < 64 * 1024
