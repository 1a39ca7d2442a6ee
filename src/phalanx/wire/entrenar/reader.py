"""Bytes in, messages of entrenar out."""

from codecs import getincrementaldecoder
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from phalanx.errors import BadFrame
from phalanx.wire.entrenar.codec import KINDS, LAYOUTS, SIZE, STRANGER_BYTES, check_count, check_sum, data_bytes
from phalanx.wire.entrenar.message import ELEMENTS, TEXT, Gradient, Message

_PREFIX_BYTES = 4
_SKIP_BYTES = 1024
_KEPT = 256  # characters of a text; the rest is read and forgotten


@dataclass(frozen=True, slots=True)
class EntrenarBegan:
    """Gradients come next, ``elements`` of them and at least one. Fields that are sent after them are still zero."""

    message: Gradient


@dataclass(frozen=True, slots=True)
class EntrenarEnded:
    """A message is complete, and its gradients, if it has any, have all come."""

    message: Message


Event = EntrenarBegan | EntrenarEnded


class EntrenarReader:
    """Messages, from bytes that come in any pieces, without reading a byte too many.

    While ``data_bytes`` is not 0, gradients come: receive them where they shall lie, and say so with ``took``. Else
    ``feed`` up to ``wants`` bytes. It holds no more than it was sent, and a frame that announces more than
    ``limit_bytes`` is refused at once. After a BadFrame every further call raises the same words again.
    """

    def __init__(self, limit_bytes: int = STRANGER_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._refusal: str | None = None
        self._buffer = bytearray()
        self._data_bytes = 0
        self._begin()

    @property
    def wants(self) -> int:
        """How many bytes to feed next, at most; 0 while gradients come."""
        return self._part_bytes - len(self._buffer)

    @property
    def data_bytes(self) -> int:
        """How many bytes of gradients come before anything else."""
        return self._data_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> Event | None:
        """Take in what the peer sent, and return what it completes. The data is copied."""
        self._check()
        assert len(data) <= self.wants, (len(data), self.wants)
        self._buffer += data
        if self.wants:
            return None
        part = bytes(self._buffer)
        self._buffer.clear()
        return self._go_on(part)

    def took(self, size_bytes: int) -> Event | None:
        """Count gradients that were received elsewhere, and return what they complete."""
        self._check()
        assert size_bytes <= self._data_bytes, (size_bytes, self._data_bytes)
        self._data_bytes -= size_bytes
        return None if self._data_bytes else self._go_on(b"")

    def raise_limit(self, limit_bytes: int) -> None:
        """Accept frames of up to ``limit_bytes`` from now on: call it once the peer has joined."""
        self._check()
        self._limit_bytes = max(self._limit_bytes, limit_bytes)

    def _check(self) -> None:
        if self._refusal is not None:
            raise BadFrame(self._refusal)

    def _begin(self) -> None:
        self._frame = self._read_frame()
        next(self._frame)
        self._part_bytes = _PREFIX_BYTES

    def _go_on(self, part: bytes) -> Event | None:
        try:
            step = self._frame.send(part)
            while step == 0:  # an empty text, or no fields left: nothing will come that could be fed
                step = self._frame.send(b"")
        except StopIteration as end:
            self._begin()
            return EntrenarEnded(end.value)
        except BadFrame as error:
            self._refusal = str(error)
            raise
        if isinstance(step, int):
            self._part_bytes = step
            return None
        self._part_bytes = 0
        self._data_bytes = data_bytes(step.message)
        return step

    def _read_frame(self) -> Generator[int | EntrenarBegan, bytes, Message]:
        """Ask for bytes by their number, and for gradients by EntrenarBegan; return the message."""
        length = int.from_bytes((yield _PREFIX_BYTES), "big")
        if not 0 < length <= self._limit_bytes:
            raise BadFrame(f"a frame of entrenar has 1 to {self._limit_bytes} bytes here, not {length}")
        (tag,) = yield 1
        if tag not in KINDS:
            raise BadFrame(f"tag {tag:#04x} is unknown: messages of entrenar have 0x01 to {len(KINDS):#04x}")
        return (yield from _read_message(KINDS[tag], length - 1))


def _read_message(kind: type[Message], length: int) -> Generator[int | EntrenarBegan, bytes, Message]:
    runs = LAYOUTS[kind]
    spare = length - sum(run.numbers.size for run in runs)
    if spare < 0:
        raise BadFrame(f"a {kind.__name__} has at least {length - spare} bytes after its tag, not {length}")
    values: list[Any] = []  # of the types that the message has
    for numbers, counted in runs:
        values += numbers.unpack((yield numbers.size))
        if counted is None:
            continue
        count = values[-1]
        check_count(counted, count, BadFrame)
        spare -= count * counted.item_bytes
        if spare < 0:
            raise BadFrame(f"a {kind.__name__} has {count} {counted.name}, which end {-spare} bytes after its frame")
        if counted is TEXT:
            values[-1] = yield from _read_text(count)
            continue
        if counted is not ELEMENTS:
            values[-1] = tuple(size for (size,) in SIZE.iter_unpack((yield count * counted.item_bytes)))
            continue
        message = kind(*values)
        assert isinstance(message, Gradient), message
        check_sum(message, BadFrame)
        if count:
            yield EntrenarBegan(message)
    while spare:  # entrenar ignores what follows a message in its frame, so its peers may send it
        spare -= len((yield min(spare, _SKIP_BYTES)))
    return kind(*values)


def _read_text(size_bytes: int) -> Generator[int, bytes, str]:
    """Return the beginning of a text; all of it must be UTF-8."""
    decoder = getincrementaldecoder("utf-8")()
    kept, flaw, read_bytes = "", "", 0
    while read_bytes < size_bytes and not flaw:
        piece = yield min(size_bytes - read_bytes, _SKIP_BYTES)
        start = read_bytes - len(decoder.getstate()[0])
        read_bytes += len(piece)
        try:
            kept = (kept + decoder.decode(piece, final=read_bytes == size_bytes))[:_KEPT]
        except UnicodeDecodeError as error:
            flaw = f"{error.reason} at byte {start + error.start}"
    if flaw:  # raised here: as a context, the error would keep the bytes alive
        raise BadFrame(f"a text of {size_bytes} bytes is not UTF-8: {flaw}")
    return kept
