import tracemalloc
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import BadFrame, ConfigError
from phalanx.wire import HEADER_BYTES, NO_ROOT, gradient

SLACK_BYTES = 64 * 1024


def up_to(greatest):
    return st.integers(0, greatest)


numbers = up_to(2**64 - 1)
texts = st.text(max_size=20)
losses = st.floats(allow_nan=False)
whats = (
    st.builds(gradient.Whole)
    | st.sampled_from(gradient.Component)
    | st.integers(1, NO_ROOT).flatmap(lambda of: st.builds(gradient.ModelBlock, up_to(of - 1), st.just(of)))
)


def gradients(kind, samples):
    def make(sizes, *rest):
        step, what, loss, correct, samples = rest
        return kind(step, what, sum(sizes), sizes, loss, correct, samples)

    sizes = st.lists(up_to(20), max_size=3).map(tuple)
    return st.builds(make, sizes, numbers, whats, losses, numbers, samples)


MESSAGES = {
    gradient.WorkerJoin: st.builds(gradient.WorkerJoin, texts),
    gradient.WorkerJoined: st.builds(gradient.WorkerJoined, up_to(NO_ROOT - 1), st.integers(1, NO_ROOT)),
    gradient.WorkerRefused: st.builds(gradient.WorkerRefused, texts),
    gradient.WorkerSamples: st.builds(gradient.WorkerSamples, numbers, numbers, numbers),
    gradient.Gradient: gradients(gradient.Gradient, st.none() | numbers),
    gradient.Mean: gradients(gradient.Mean, numbers),
    gradient.ServerHalt: st.builds(
        gradient.ServerHalt, numbers, st.sampled_from(gradient.ServerHaltReason), st.none() | up_to(NO_ROOT - 1), texts
    ),
    gradient.ServerEnd: st.builds(gradient.ServerEnd),
    gradient.ServerAlive: st.builds(gradient.ServerAlive),
}
messages = st.one_of(*MESSAGES.values())


@st.composite
def conversations(draw):
    """Messages with the bytes of their elements, if they have any."""
    chosen = draw(st.lists(messages, min_size=1, max_size=4))
    return [(each, draw(st.binary(min_size=size, max_size=size))) for each in chosen for size in [data_bytes(each)]]


def data_bytes(message):
    return gradient.ITEM_BYTES * getattr(message, "elements", 0)


def as_sent(message, data=b""):
    return b"".join(buffer for frame in gradient.frames(message, memoryview(data)) for buffer in frame)


def read(data, limit_bytes=gradient.STRANGER_BYTES, piece_bytes=2**20):
    """The events that these bytes are, with the elements that came before each."""
    reader, events, elements = gradient.GradientReader(limit_bytes), [], b""
    while data:
        length = min(len(data), piece_bytes, reader.data_bytes or reader.wants)
        piece, data = data[:length], data[length:]
        if reader.data_bytes:
            elements += piece
            happened = reader.took(length)
        else:
            happened = reader.feed(piece)
        for event in happened:
            events.append((event, elements))
            elements = b""
    return events


def test_every_message_is_drawn():
    assert set(MESSAGES) == set(get_args(gradient.Message))


@settings(deadline=None, max_examples=200)
@given(conversations(), st.integers(1, 200), st.integers(1, 40))
def test_what_was_sent_is_what_is_read_in_pieces_of_any_size(conversation, piece_bytes, frame_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient, "FRAME_BYTES", frame_bytes)
        sent = b"".join(as_sent(*each) for each in conversation)

        events = read(sent, piece_bytes=piece_bytes)

    expected = []
    for message, data in conversation:
        if isinstance(message, gradient.Gradient | gradient.Mean):
            expected.append((gradient.GradientBegan(message), b""))
        if not isinstance(message, gradient.ServerAlive):
            expected.append((gradient.MessageEnded(message), data))
    assert events == expected


def test_a_halt_is_heard_between_two_frames_of_a_gradient():
    mean = gradient.Mean(step=3, what=gradient.Whole(), elements=4, sizes=(4,))
    halt = gradient.ServerHalt(step=3, reason=gradient.ServerHaltReason.LOST, worker=1, words="worker 1 went away")
    first = b"".join(gradient.data_frame(mean, memoryview(b"12345678")))

    events = read(gradient.encode(mean) + first + gradient.encode(halt))

    assert [event for event, _ in events] == [gradient.GradientBegan(mean), gradient.MessageEnded(halt)]


def test_a_sign_of_life_may_come_between_two_frames_of_a_gradient():
    mean = gradient.Mean(step=3, what=gradient.Whole(), elements=4, sizes=(4,))
    frames = [b"".join(gradient.data_frame(mean, memoryview(data))) for data in (b"12345678", b"87654321")]

    events = read(gradient.encode(mean) + gradient.encode(gradient.ServerAlive()).join(frames))

    assert [event for event, _ in events] == [gradient.GradientBegan(mean), gradient.MessageEnded(mean)]


def test_nothing_else_interrupts_a_gradient():
    mean = gradient.Mean(step=3, what=gradient.Whole(), elements=4, sizes=(4,))

    with pytest.raises(BadFrame, match="only a halt can interrupt a gradient, not ServerEnd"):
        read(gradient.encode(mean) + gradient.encode(gradient.ServerEnd()))


def test_elements_of_another_step_or_too_many_of_them_are_refused():
    mean = gradient.Mean(step=3, what=gradient.Whole(), elements=2, sizes=(2,))
    later = gradient.Mean(step=4, what=gradient.Whole(), elements=2, sizes=(2,))
    for frame in (gradient.data_frame(later, memoryview(bytes(8))), gradient.data_frame(mean, memoryview(bytes(12)))):
        with pytest.raises(BadFrame, match="8 bytes of step 3, the whole gradient: 2 elements are missing"):
            read(gradient.encode(mean) + b"".join(frame))


def test_elements_without_a_gradient_are_refused():
    mean = gradient.Mean(step=3, what=gradient.Whole(), elements=2, sizes=(2,))

    with pytest.raises(BadFrame, match="a gradient begins with a message, not with data"):
        read(b"".join(gradient.data_frame(mean, memoryview(bytes(8)))))


def test_a_message_over_the_limit_is_refused_from_its_header_alone():
    frame = gradient.encode(gradient.WorkerRefused(words="x" * 4090))

    with pytest.raises(BadFrame, match="over the limit of 4096 bytes"):
        read(frame[:HEADER_BYTES])


def test_sizes_that_do_not_add_up_are_a_bad_request_here_and_a_bad_frame_there():
    sound = gradient.Gradient(step=0, what=gradient.Whole(), elements=3, sizes=(2, 1))

    with pytest.raises(ConfigError, match="the sizes add up to 4, and not to 3 elements"):
        gradient.Gradient(step=0, what=gradient.Whole(), elements=3, sizes=(2, 2))
    with pytest.raises(BadFrame, match="the sizes add up to 4, and not to 3 elements"):
        gradient.decode(gradient.encode(sound)[HEADER_BYTES:].replace(b"\x92\x02\x01", b"\x92\x02\x02"))


def test_a_block_lies_within_its_model():
    with pytest.raises(ConfigError, match="a model of 3 blocks has no block 3"):
        gradient.ModelBlock(3, of=3)


def test_what_is_sent_is_shown_in_words():
    shown = [str(each) for each in (gradient.Whole(), gradient.ModelBlock(2, of=24), *gradient.Component)]

    assert shown == ["the whole gradient", "block 2 of 24", "the lm head", "the final norm", "the embedding"]


valid = conversations().map(lambda each: b"".join(as_sent(*pair) for pair in each))


@st.composite
def mutated(draw):
    data = bytearray(draw(valid))
    for offset in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[offset] = draw(st.integers(0, 255))
    return bytes(data)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300) | valid | mutated())
def test_hostile_bytes_raise_only_bad_frame_and_cost_only_what_was_sent(data):
    tracemalloc.start()
    try:
        read(data, limit_bytes=2**63)
    except BadFrame:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert peak_bytes < SLACK_BYTES + 4 * len(data)
