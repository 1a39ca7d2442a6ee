"""One end of a connection between a worker and the gradient server."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from phalanx.transport import StreamLink
from phalanx.wire import gradient

NO_DATA = memoryview(b"")

_MEMBER_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16
_LONGEST_LOOK_S = 1.0
_MOST_AT_ONCE = 64  # reads, so that the other connections get their turn


@dataclass(slots=True)
class Silence:
    """For how long nothing has come from a peer, as far as somebody looked.

    A process that was stopped itself did not look, so that no more than ``_LONGEST_LOOK_S`` count at a time.
    """

    seconds: float = 0.0
    _bytes_heard: int = -1
    _looked_at: float = 0.0

    def look(self, bytes_heard: int, now: float) -> None:
        """Note how many bytes the peer has sent in all."""
        is_new = bytes_heard != self._bytes_heard
        self.seconds = 0.0 if is_new else self.seconds + min(now - self._looked_at, _LONGEST_LOOK_S)
        self._bytes_heard, self._looked_at = bytes_heard, now


class Wire(Protocol):
    """A protocol: how messages and gradients are written as bytes and read from them."""

    is_streaming: bool
    """Whether a gradient may be sent while it is being computed, and be interrupted."""

    @property
    def wants(self) -> int:
        """The most bytes to feed next."""

    @property
    def data_bytes(self) -> int:
        """How many bytes of elements come next; 0 while a message is read."""

    def feed(self, data: bytes) -> list[gradient.Event]:
        """Take in what the peer sent and return the events it completes."""

    def took(self, size_bytes: int) -> list[gradient.Event]:
        """Count bytes of elements that were received elsewhere, and return the event they complete, if any."""

    def frames(self, message: gradient.Message, data: memoryview) -> Iterator[tuple[gradient.Buffer, ...]]:
        """Yield the buffers to send for a message, frame by frame. ``data`` is the elements, if it has any."""

    def trust(self) -> None:
        """Accept longer messages, now that the peer has joined."""


class OurWire(gradient.GradientReader):
    """Phalanx's own protocol."""

    is_streaming = True

    def frames(self, message: gradient.Message, data: memoryview) -> Iterator[tuple[gradient.Buffer, ...]]:
        """Yield the buffers to send for a message, frame by frame. ``data`` is the elements, if it has any."""
        return gradient.frames(message, data)

    def trust(self) -> None:
        """Accept longer messages, now that the peer has joined."""
        self.raise_limit(_MEMBER_BYTES)


class Peer:
    """One end of a connection, with queues of what to send and of what arrives. No method waits.

    Elements are received into ``room``; while there is none, they stay in the socket. ``bytes_heard`` counts all bytes
    received. ``opening`` is what was read from the connection before this object was made.
    """

    def __init__(self, link: StreamLink, wire: Wire, opening: bytes = b"") -> None:
        self.wire = wire
        self.room = NO_DATA
        self.bytes_heard = 0
        self._is_drained = True  # the last read found nothing
        self._link = link
        self._frames: deque[tuple[gradient.Buffer, ...]] = deque()
        self._leaving: deque[memoryview] = deque()  # the rest of the frame that is partly sent
        while opening:
            wanted = wire.wants
            wire.feed(opening[:wanted])
            opening = opening[wanted:]

    @property
    def is_quiet(self) -> bool:
        """Whether everything has been sent."""
        return not (self._leaving or self._frames)

    @property
    def is_held(self) -> bool:
        """Whether elements have arrived for which there is no room."""
        return bool(self.wire.data_bytes and not self.room)

    @property
    def has_more(self) -> bool:
        """Whether there may be more to hear that no poll shows: TLS may hold some."""
        return not self._is_drained and not self.is_held

    def say(self, message: gradient.Message, data: memoryview = NO_DATA) -> None:
        """Queue a message. The data must not change until this peer is quiet."""
        self._frames.extend(self.wire.frames(message, data))

    def post(self, frame: tuple[gradient.Buffer, ...]) -> None:
        """Queue a frame."""
        self._frames.append(frame)

    def break_off(self) -> None:
        """Drop everything queued, except for the frame that is partly sent."""
        self._frames.clear()

    def speak(self) -> None:
        """Send as much as the socket takes; raises ``PeerLost``."""
        while not self.is_quiet:
            if not self._leaving:
                self._leaving.extend(memoryview(buffer) for buffer in self._frames.popleft() if len(buffer))
            data = self._leaving[0]
            sent = self._link.send_nowait(data)
            if sent < len(data):
                self._leaving[0] = data[sent:]
                return
            self._leaving.popleft()

    def hear(self) -> Iterator[gradient.Event]:
        """Yield events that have arrived, as far as there is room; raises ``PeerLost`` or ``ProtocolError``.

        It ends after 64 reads, even if there is more.
        """
        for _ in range(_MOST_AT_ONCE):
            if self.is_held:
                return
            if expected := self.wire.data_bytes:
                received = self._link.receive_nowait(self.room[:expected])
                self.room = self.room[received:]
                events = self.wire.took(received)
            else:
                piece = memoryview(bytearray(min(self.wire.wants, _PIECE_BYTES)))
                received = self._link.receive_nowait(piece)
                events = self.wire.feed(bytes(piece[:received]))
            self._is_drained = not received
            if not received:
                return
            self.bytes_heard += received
            yield from events

    def discard(self) -> None:
        """Read what has arrived, at most 64 pieces, and ignore it; raises ``PeerLost``."""
        piece = memoryview(bytearray(_PIECE_BYTES))
        for _ in range(_MOST_AT_ONCE):
            self._is_drained = not self._link.receive_nowait(piece)
            if self._is_drained:
                return

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._link.fileno()

    def close(self) -> None:
        """Close the connection. Closing twice is harmless."""
        self._link.close()
