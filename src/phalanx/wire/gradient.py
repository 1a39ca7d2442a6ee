"""What workers and the gradient server say to each other on our wire.

Messages are control frames. The elements of a ``Gradient`` or a ``Mean`` follow it in data frames, of any length, and
between two of them the server may say ``Halt``.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from msgspec import Meta

from phalanx.buffers import DType, ReduceOp
from phalanx.errors import BadFrame, ConfigError
from phalanx.wire.codec import Codec, Tagged
from phalanx.wire.frame import HEADER_BYTES, Collective, Header, Kind, Signature, Tag
from phalanx.wire.message import Name, Number, Rank, Size, Text

ITEM_BYTES = 4
"""All gradients are f32, little-endian."""

FRAME_BYTES = 1 << 21
"""Of a data frame: short enough to be interrupted soon, long enough that few have to be waited for."""

STRANGER_BYTES = 4096
"""The longest message to take from a peer that has not joined."""

_GLUED_BYTES = 4096
_SHOWN = 12

Elements = Annotated[int, Meta(ge=0, lt=2**62)]
Sizes = Annotated[tuple[Number, ...], Meta(max_length=4096)]


class Whole(Tagged, frozen=True):
    """The gradient of all parameters."""

    def __str__(self) -> str:
        return "the whole gradient"


class Block(Tagged, frozen=True):
    """The gradient of one of a model's blocks."""

    index: Number
    of: Size

    def __post_init__(self) -> None:
        if self.index >= self.of:
            raise ConfigError(f"a model of {self.of} blocks has no block {self.index}: they count from 0")

    def __str__(self) -> str:
        return f"block {self.index} of {self.of}"


class Component(Enum):
    """The gradient of a part of the model that is no block."""

    LM_HEAD = 0
    FINAL_NORM = 1
    EMBEDDING = 2

    def __str__(self) -> str:
        return "the " + self.name.lower().replace("_", " ")


What = Whole | Block | Component


class Reason(Enum):
    """Why everybody halted."""

    NON_FINITE = "non-finite"
    """A gradient is not finite."""
    LOST = "lost"
    """A worker went away."""
    STALLED = "stalled"
    """A deadline passed."""
    DISAGREED = "disagreed"
    """Workers did not send the same, or not what the server asked for."""
    FAILED = "failed"
    """The server's own program failed."""


class Join(Tagged, frozen=True):
    """A worker wants to join."""

    name: Name


class Joined(Tagged, frozen=True):
    """The server admits a worker."""

    worker: Rank
    workers: Size


class Refused(Tagged, frozen=True):
    """The server does not admit a worker."""

    words: Text


class Shard(Tagged, frozen=True):
    """The samples of a worker in a step; ``stop`` is the first that is not."""

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
    """A worker's contribution; ``samples`` is None where they are not counted, or not yet."""

    samples: Number | None = None


class Mean(_Gradient, frozen=True):
    """The mean of all contributions."""

    samples: Number = 0


class Halt(Tagged, frozen=True):
    """Everybody stops; ``worker`` caused it, if one did."""

    step: Number
    reason: Reason
    worker: Rank | None
    words: Text


class End(Tagged, frozen=True):
    """The server has no more work."""


Message = Join | Joined | Refused | Shard | Gradient | Mean | Halt | End

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode


@dataclass(frozen=True, slots=True)
class Began:
    """The elements of a gradient come next."""

    message: Gradient | Mean


@dataclass(frozen=True, slots=True)
class Ended:
    """A message is complete, and so are the elements that belong to it."""

    message: Message


Buffer = bytes | memoryview
Event = Began | Ended


def data_frame(message: Gradient | Mean, run: memoryview) -> tuple[Buffer, ...]:
    """All there is to send for some of a gradient's elements, which are not copied but for a few."""
    # A header of its own would cost a packet, and wake its receiver for nothing.
    return _data_header(message, len(run)) + run[:_GLUED_BYTES], run[_GLUED_BYTES:]


def frames(message: Message, data: memoryview) -> Iterator[tuple[Buffer, ...]]:
    """All there is to send for a message, frame by frame; ``data`` is the elements, if it has any."""
    yield (encode(message),)
    if isinstance(message, Gradient | Mean):
        for start in range(0, len(data), FRAME_BYTES):
            yield data_frame(message, data[start : start + FRAME_BYTES])


class Reader:
    """Messages, from bytes that come in any pieces, and never a byte more than it asked for.

    While ``data_bytes`` is not 0, that many bytes of gradients come next: receive them where they shall lie, and say
    so with ``took``. Else ``feed`` up to ``wants`` bytes. It holds no more than it was sent, and a message that
    announces more than ``limit_bytes`` is refused at once. After a BadFrame it is of no further use.
    """

    def __init__(self, limit_bytes: int = STRANGER_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._script = self._read()
        self._events: list[Event] = []
        self.data_bytes = 0
        self._size_bytes = next(self._script)

    @property
    def wants(self) -> int:
        """The most bytes to feed next."""
        return self._size_bytes - len(self._buffer)

    def feed(self, data: bytes) -> list[Event]:
        """Take in what the peer sent, and say what it came to. The data is copied."""
        assert len(data) <= self.wants, (len(data), self.wants)
        self._buffer += data
        if self.wants:
            return []
        taken = bytes(self._buffer)
        self._buffer.clear()
        return self._go_on(taken)

    def took(self, size_bytes: int) -> list[Event]:
        """Leave out elements that were received elsewhere, and say whether the gradient is complete."""
        assert 0 <= size_bytes <= self.data_bytes, (size_bytes, self.data_bytes)
        self.data_bytes -= size_bytes
        return [] if self.data_bytes else self._go_on(b"")

    def raise_limit(self, limit_bytes: int) -> None:
        """Accept messages of up to ``limit_bytes`` from now on: call it once the peer has joined."""
        self._limit_bytes = max(self._limit_bytes, limit_bytes)

    def _go_on(self, taken: bytes) -> list[Event]:
        self._size_bytes = self._script.send(taken)
        events, self._events = self._events, []
        return events

    def _read(self) -> Generator[int, bytes, None]:
        """Ask for bytes by their number; 0 while they are received elsewhere."""
        while True:
            header = Header.unpack((yield HEADER_BYTES))
            if header.kind is Kind.DATA:
                raise BadFrame(f"a gradient begins with a message, not with {header}")
            message = yield from self._read_message(header)
            if isinstance(message, Gradient | Mean):
                self._events.append(Began(message))
                yield from self._read_data(message)
            self._events.append(Ended(message))

    def _read_message(self, header: Header) -> Generator[int, bytes, Message]:
        if not 0 < header.length <= self._limit_bytes:
            raise BadFrame(f"a message is not within the limit of 1 to {self._limit_bytes} bytes: {header}")
        return decode((yield header.length))

    def _read_halt(self, header: Header) -> Generator[int, bytes, Halt]:
        message = yield from self._read_message(header)
        if not isinstance(message, Halt):
            raise BadFrame(f"a gradient can be broken off by a halt only, not by {type(message).__name__}")
        return message

    def _read_data(self, message: Gradient | Mean) -> Generator[int, bytes, None]:
        left = message.elements * ITEM_BYTES
        while left:
            header = Header.unpack((yield HEADER_BYTES))
            if header.kind is Kind.CONTROL:
                halt = yield from self._read_halt(header)
                self._events.append(Ended(halt))
                continue
            if not 0 < header.length <= left or header.pack() != _data_header(message, header.length):
                raise BadFrame(f"{left} bytes are missing of {message}, but there came {header}")
            self.data_bytes = header.length
            yield 0
            left -= header.length


def _data_header(message: Gradient | Mean, size_bytes: int) -> bytes:
    signature = Signature(Collective.ALL_REDUCE, DType.F32, message.elements, ReduceOp.MEAN)
    return Header(Kind.DATA, Tag(0, message.step, 0), signature, size_bytes).pack()
