"""The messages between workers and the gradient server.

Messages are control frames. The elements of a ``Gradient`` or a ``Mean`` follow it in data frames of any length.
Between two data frames the server may send a ``ServerHalt`` or a ``ServerAlive``. On the wire messages have short
names, given as tags.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from msgspec import Meta

from phalanx.buffers import DType, ReduceOp
from phalanx.errors import BadFrame, ConfigError
from phalanx.wire.codec import Codec, Tagged
from phalanx.wire.frame import Collective, Header, Kind, Signature, Tag
from phalanx.wire.message import Name, Number, Rank, Size, Text
from phalanx.wire.reader import FrameReader

ITEM_BYTES = 4
"""All gradients are f32, little-endian."""

FRAME_BYTES = 1 << 21
"""The longest data frame we send: short enough that a halt need not wait long, long enough that frames are few."""

STRANGER_BYTES = 4096
"""The longest message that is accepted from a peer that has not joined."""

_GLUED_BYTES = 4096
_SHOWN = 12

Elements = Annotated[int, Meta(ge=0, lt=2**62)]
Sizes = Annotated[tuple[Number, ...], Meta(max_length=4096)]


class Whole(Tagged, frozen=True):
    """The gradient of all parameters."""

    def __str__(self) -> str:
        return "the whole gradient"


class ModelBlock(Tagged, frozen=True, tag="Block"):
    """The gradient of one transformer block."""

    index: Number
    of: Size

    def __post_init__(self) -> None:
        if self.index >= self.of:
            raise ConfigError(f"a model of {self.of} blocks has no block {self.index}: they count from 0")

    def __str__(self) -> str:
        return f"block {self.index} of {self.of}"


class Component(Enum):
    """The gradient of a part of the model outside its transformer blocks."""

    LM_HEAD = 0
    FINAL_NORM = 1
    EMBEDDING = 2

    def __str__(self) -> str:
        return "the " + self.name.lower().replace("_", " ")


What = Whole | ModelBlock | Component


class ServerHaltReason(Enum):
    """Why everybody halted."""

    NON_FINITE = "non-finite"
    """A gradient is not finite."""
    LOST = "lost"
    """A worker went away."""
    STALLED = "stalled"
    """A deadline passed."""
    DISAGREED = "disagreed"
    """Workers sent different things, or something that the server did not ask for."""
    FAILED = "failed"
    """The server's own program failed."""


class WorkerJoin(Tagged, frozen=True, tag="Join"):
    """A worker asks to join."""

    name: Name


class WorkerJoined(Tagged, frozen=True, tag="Joined"):
    """The server accepts a worker."""

    worker: Rank
    workers: Size


class WorkerRefused(Tagged, frozen=True, tag="Refused"):
    """The server refuses a worker."""

    words: Text


class WorkerSamples(Tagged, frozen=True, tag="Shard"):
    """The samples of a worker in a step, from ``start`` up to but not including ``stop``."""

    step: Number
    start: Number
    stop: Number


class _Gradient(Tagged, frozen=True):
    step: Number
    what: What
    elements: Elements
    sizes: Sizes
    loss: float = 0.0
    correct: Number = 0

    def __post_init__(self) -> None:
        if sum(self.sizes) != self.elements:
            raise ConfigError(f"the sizes add up to {sum(self.sizes)}, and not to {self.elements} elements")

    def __str__(self) -> str:
        shown = " + ".join(map(str, self.sizes[:_SHOWN])) + (" + ..." if len(self.sizes) > _SHOWN else "")
        parts = f" ({shown})" if len(self.sizes) > 1 else ""
        return f"step {self.step}, {self.what}: {self.elements} elements{parts}"


class Gradient(_Gradient, frozen=True):
    """A worker's contribution. ``samples`` is None where samples are not counted, or not counted yet."""

    samples: Number | None = None


class Mean(_Gradient, frozen=True):
    """The mean of all contributions."""

    samples: Number = 0


class ServerHalt(Tagged, frozen=True, tag="Halt"):
    """All workers stop. ``worker`` is the one that caused it, or None."""

    step: Number
    reason: ServerHaltReason
    worker: Rank | None
    words: Text


class ServerEnd(Tagged, frozen=True, tag="End"):
    """The server has no more work."""


class ServerAlive(Tagged, frozen=True, tag="Alive"):
    """A sign of life, sent now and then to every worker. Readers skip it: what counts is that something arrives."""


Message = (
    WorkerJoin | WorkerJoined | WorkerRefused | WorkerSamples | Gradient | Mean | ServerHalt | ServerEnd | ServerAlive
)

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode


@dataclass(frozen=True, slots=True)
class GradientBegan:
    """The message of a gradient has arrived, and its elements come next."""

    message: Gradient | Mean


@dataclass(frozen=True, slots=True)
class MessageEnded:
    """A message has arrived, with all elements that belong to it."""

    message: Message


Buffer = bytes | memoryview
Event = GradientBegan | MessageEnded


def data_frame(message: Gradient | Mean, data: memoryview) -> tuple[Buffer, ...]:
    """Return the buffers to send for some of a gradient's elements. Only the first few elements are copied."""
    # A packet with only a header would wake the receiver for nothing.
    return _data_header(message, len(data)) + data[:_GLUED_BYTES], data[_GLUED_BYTES:]


def frames(message: Message, data: memoryview) -> Iterator[tuple[Buffer, ...]]:
    """Yield the buffers to send for a message, frame by frame. ``data`` is the elements, if it has any."""
    yield (encode(message),)
    if isinstance(message, Gradient | Mean):
        for start in range(0, len(data), FRAME_BYTES):
            yield data_frame(message, data[start : start + FRAME_BYTES])


class GradientReader:
    """Turns bytes, fed in any lengths, into messages. It never asks for a byte that is not its own.

    While ``data_bytes`` is not 0, the next bytes are elements: receive them where they belong and report them with
    ``took``. Otherwise ``feed`` up to ``wants`` bytes. The reader holds only what it was sent, and refuses a message
    longer than ``limit_bytes`` as soon as it is announced. After a BadFrame the reader is of no further use.
    """

    def __init__(self, limit_bytes: int = STRANGER_BYTES) -> None:
        self._frames = FrameReader(limit_bytes)
        self._gradient: Gradient | Mean | None = None  # the one whose elements are arriving
        self._missing_bytes = 0
        self.data_bytes = 0

    @property
    def wants(self) -> int:
        """The most bytes to feed next."""
        return self._frames.wants

    def feed(self, data: bytes) -> list[Event]:
        """Take in what the peer sent and return the events it completes. The data is copied."""
        assert len(data) <= self.wants, (len(data), self.wants)
        self._frames.feed(data)
        header = self._frames.peek_header()
        if header is not None and header.kind is Kind.DATA:
            self._frames.skip_payload()
            return self._expect_data(header)
        frame = self._frames.next_frame()
        return [] if frame is None else self._take(decode(frame[1]))

    def took(self, size_bytes: int) -> list[Event]:
        """Count bytes of elements that were received elsewhere, and return the event they complete, if any."""
        assert 0 <= size_bytes <= self.data_bytes, (size_bytes, self.data_bytes)
        self.data_bytes -= size_bytes
        self._missing_bytes -= size_bytes
        return [] if self._missing_bytes else self._end_gradient()

    def raise_limit(self, limit_bytes: int) -> None:
        """Accept messages of up to ``limit_bytes`` from now on. Call it once the peer has joined."""
        self._frames.raise_limit(limit_bytes)

    def _take(self, message: Message) -> list[Event]:
        if isinstance(message, ServerAlive):
            return []
        if self._gradient is not None and not isinstance(message, ServerHalt):
            raise BadFrame(f"only a halt can interrupt a gradient, not {type(message).__name__}")
        if not isinstance(message, Gradient | Mean):
            return [MessageEnded(message)]
        self._gradient = message
        self._missing_bytes = message.elements * ITEM_BYTES
        began = GradientBegan(message)
        return [began] if self._missing_bytes else [began, *self._end_gradient()]

    def _expect_data(self, header: Header) -> list[Event]:
        if self._gradient is None:
            raise BadFrame(f"a gradient begins with a message, not with {header}")
        is_short = 0 < header.length <= self._missing_bytes
        if not is_short or header.pack() != _data_header(self._gradient, header.length):
            raise BadFrame(f"{self._missing_bytes} bytes of {self._gradient} are missing, but {header} arrived")
        self.data_bytes = header.length
        return []

    def _end_gradient(self) -> list[Event]:
        assert self._gradient is not None, "somebody took elements that were not there"
        message, self._gradient = self._gradient, None
        return [MessageEnded(message)]


def _data_header(message: Gradient | Mean, size_bytes: int) -> bytes:
    signature = Signature(Collective.ALL_REDUCE, DType.F32, message.elements, ReduceOp.MEAN)
    return Header(Kind.DATA, Tag(0, message.step, 0), signature, size_bytes).pack()
