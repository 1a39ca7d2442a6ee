"""The messages of entrenar. Each class is the layout of its message, but for the gradients behind ``elements``."""

from dataclasses import dataclass, fields
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Counted:
    """Items with their count before them: ``count`` is its letter in a struct."""

    name: str
    count: str
    item_bytes: int
    most: int


LONGEST_FRAME_BYTES = 100_000_000
"""Entrenar itself takes no longer frames."""

TEXT = Counted("UTF-8 bytes", count="I", item_bytes=1, most=LONGEST_FRAME_BYTES)
SIZES = Counted("component sizes", count="I", item_bytes=4, most=16)  # entrenar has 9
ELEMENTS = Counted("elements", count="Q", item_bytes=4, most=2**64)

U8 = Annotated[int, "B"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
F32 = Annotated[float, "f"]
Text = Annotated[str, TEXT]
Sizes = Annotated[tuple[int, ...], SIZES]
Elements = Annotated[int, ELEMENTS]

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class _Message:
    def __str__(self) -> str:
        words = (f"{field.name.replace('_', ' ')} {_shown(getattr(self, field.name))}" for field in fields(self))
        return ", ".join((type(self).__name__, *words))


@dataclass(frozen=True, slots=True)
class JoinRequest(_Message):
    """A worker wants to join: the first frame of a connection."""

    node_id: Text
    gpu_count: U32
    backend: Text


@dataclass(frozen=True, slots=True)
class JoinAccepted(_Message):
    """The server admits a worker."""

    worker_id: U32
    total_workers: U32


@dataclass(frozen=True, slots=True)
class ShardAssignment(_Message):
    """The samples of a worker in a step; ``shard_end`` is the first that is not."""

    step: U64
    shard_start: U64
    shard_end: U64


@dataclass(frozen=True, slots=True)
class GradientPayload(_Message):
    """A worker's whole gradient; what stands behind ``elements`` is sent after it."""

    step: U64
    worker_id: U32
    elements: Elements
    loss: F32 = 0.0
    correct: U64 = 0
    total: U64 = 0


@dataclass(frozen=True, slots=True)
class AveragedGradient(_Message):
    """The mean of all workers' gradients; the loss is sent after it."""

    step: U64
    elements: Elements
    global_loss: F32 = 0.0


@dataclass(frozen=True, slots=True)
class Heartbeat(_Message):
    """A node lives. Entrenar defines it, but its own workers and servers fail when they receive one."""

    node_id: Text
    timestamp_ms: U64


@dataclass(frozen=True, slots=True)
class Shutdown(_Message):
    """The server has no more work."""


@dataclass(frozen=True, slots=True)
class BlockGradientPayload(_Message):
    """A worker's gradient of one transformer block: its components, end to end."""

    step: U64
    worker_id: U32
    block_idx: U32
    num_blocks: U32
    component_sizes: Sizes
    elements: Elements


@dataclass(frozen=True, slots=True)
class AveragedBlockGradient(_Message):
    """The mean of all workers' gradients of one transformer block."""

    step: U64
    block_idx: U32
    component_sizes: Sizes
    elements: Elements


@dataclass(frozen=True, slots=True)
class NonBlockGradientPayload(_Message):
    """A worker's gradient of the output layer (component 0), the last norm (1) or the embedding (2)."""

    step: U64
    worker_id: U32
    component: U8
    elements: Elements


@dataclass(frozen=True, slots=True)
class AveragedNonBlockGradient(_Message):
    """The mean of all workers' gradients of such a component."""

    step: U64
    component: U8
    elements: Elements


Whole = GradientPayload | AveragedGradient
Block = BlockGradientPayload | AveragedBlockGradient
NonBlock = NonBlockGradientPayload | AveragedNonBlockGradient
Gradient = Whole | Block | NonBlock
Message = JoinRequest | JoinAccepted | ShardAssignment | Whole | Heartbeat | Shutdown | Block | NonBlock
"""A message's tag is its place here, from 1 on."""


def _shown(value: object) -> str:
    words = repr(value)  # which makes a peer's text harmless to terminals
    return words if len(words) <= _SHOWN else words[:_SHOWN] + "..."
