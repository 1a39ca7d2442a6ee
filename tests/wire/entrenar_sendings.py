"""Messages of entrenar for hypothesis to draw, and a receiver for them."""

from hypothesis import strategies as st

from phalanx.wire.entrenar import (
    AveragedBlockGradient,
    AveragedGradient,
    AveragedNonBlockGradient,
    BlockGradientPayload,
    EntrenarEnded,
    Gradient,
    GradientPayload,
    Heartbeat,
    JoinAccepted,
    JoinRequest,
    NonBlockGradientPayload,
    ShardAssignment,
    Shutdown,
)

u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
f32 = st.floats(width=32, allow_nan=False)
texts = st.text(max_size=20)
counts = st.integers(0, 40)
sizes = st.lists(st.integers(0, 9), max_size=5).map(tuple)

MESSAGES = {
    JoinRequest: st.builds(JoinRequest, texts, u32, texts),
    JoinAccepted: st.builds(JoinAccepted, u32, u32),
    ShardAssignment: st.builds(ShardAssignment, u64, u64, u64),
    GradientPayload: st.builds(GradientPayload, u64, u32, counts, f32, u64, u64),
    AveragedGradient: st.builds(AveragedGradient, u64, counts, f32),
    Heartbeat: st.builds(Heartbeat, texts, u64),
    Shutdown: st.builds(Shutdown),
    BlockGradientPayload: st.builds(
        lambda *words: BlockGradientPayload(*words, elements=sum(words[-1])), u64, u32, u32, u32, sizes
    ),
    AveragedBlockGradient: st.builds(
        lambda *words: AveragedBlockGradient(*words, elements=sum(words[-1])), u64, u32, sizes
    ),
    NonBlockGradientPayload: st.builds(NonBlockGradientPayload, u64, u32, u8, counts),
    AveragedNonBlockGradient: st.builds(AveragedNonBlockGradient, u64, u8, counts),
}


def frame(payload):
    return len(payload).to_bytes(4, "big") + payload


@st.composite
def sendings(draw):
    """A message, its gradients and what an entrenar of the future may add to the frame."""
    message = draw(st.one_of(*MESSAGES.values()))
    size_bytes = 4 * message.elements if isinstance(message, Gradient) else 0
    return message, draw(st.binary(min_size=size_bytes, max_size=size_bytes)), draw(st.binary(max_size=8))


def read(reader, pieces, meanings):
    """Add each message and its gradients to the meanings, as a server would receive them."""
    gradients = b""
    for piece in map(memoryview, pieces):
        rest = piece
        while rest:
            size_bytes = min(reader.data_bytes or reader.wants, len(rest))
            if reader.data_bytes:
                gradients += rest[:size_bytes]
                event = reader.took(size_bytes)
            else:
                event = reader.feed(rest[:size_bytes])
            if isinstance(event, EntrenarEnded):
                meanings.append((event.message, gradients))
                gradients = b""
            rest = rest[size_bytes:]
