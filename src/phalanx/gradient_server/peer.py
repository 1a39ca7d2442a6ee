"""One end of a connection between a worker and the gradient server."""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from phalanx.transport import StreamLink
from phalanx.wire import gradient

NO_DATA = memoryview(b"")

_MEMBER_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16


class Wire(Protocol):
    """How messages and gradients are written and read."""

    is_streaming: bool
    """Whether a gradient may be sent while it is being made, and be broken off."""

    @property
    def wants(self) -> int:
        """The most bytes to feed next."""

    @property
    def data_bytes(self) -> int:
        """The bytes of gradients that come before anything else."""

    def feed(self, data: bytes) -> list[gradient.Event]:
        """Take in what the peer sent, and say what it came to."""

    def took(self, size_bytes: int) -> list[gradient.Event]:
        """Leave out elements that were received elsewhere, and say whether the gradient is complete."""

    def frames(self, message: gradient.Message, data: memoryview) -> Iterator[tuple[gradient.Buffer, ...]]:
        """All there is to send for a message, frame by frame; ``data`` is the elements, if it has any."""

    def trust(self) -> None:
        """Accept longer messages, now that the peer has joined."""


class OurWire(gradient.GradientReader):
    """Phalanx's own."""

    is_streaming = True

    def frames(self, message: gradient.Message, data: memoryview) -> Iterator[tuple[gradient.Buffer, ...]]:
        """All there is to send for a message, frame by frame; ``data`` is the elements, if it has any."""
        return gradient.frames(message, data)

    def trust(self) -> None:
        """Accept longer messages, now that the peer has joined."""
        self.raise_limit(_MEMBER_BYTES)


class Peer:
    """What is still to be said to the other side and heard from it: neither ever waits.

    Elements of gradients go into ``room``, and are left with the network while there is none. ``bytes_heard`` counts
    all that came. ``opening`` is what was read before this.
    """

    def __init__(self, link: StreamLink, wire: Wire, opening: bytes = b"") -> None:
        self.wire = wire
        self.room = NO_DATA
        self.bytes_heard = 0
        self._link = link
        self._frames: deque[tuple[gradient.Buffer, ...]] = deque()
        self._leaving: deque[memoryview] = deque()  # what is left of the frame that has begun to leave
        while opening:
            wanted = wire.wants
            wire.feed(opening[:wanted])
            opening = opening[wanted:]

    @property
    def is_quiet(self) -> bool:
        """Whether everything was said."""
        return not (self._leaving or self._frames)

    @property
    def is_held(self) -> bool:
        """Whether elements come for which there is no room."""
        return bool(self.wire.data_bytes and not self.room)

    def say(self, message: gradient.Message, data: memoryview = NO_DATA) -> None:
        """Have a message sent after what was said before. The data must stay as it is until this peer is quiet."""
        self._frames.extend(self.wire.frames(message, data))

    def post(self, frame: tuple[gradient.Buffer, ...]) -> None:
        """Have a frame sent after what was said before."""
        self._frames.append(frame)

    def break_off(self) -> None:
        """Forget what was to be said, but for the frame that has begun to leave."""
        self._frames.clear()

    def speak(self) -> None:
        """Send as much as there is room for; raises ``PeerLost``."""
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
        """What has arrived, as far as there is room; raises ``PeerLost`` or ``ProtocolError``."""
        while not self.is_held:
            if expected := self.wire.data_bytes:
                received = self._link.receive_nowait(self.room[:expected])
                self.room = self.room[received:]
                events = self.wire.took(received)
            else:
                piece = memoryview(bytearray(min(self.wire.wants, _PIECE_BYTES)))
                received = self._link.receive_nowait(piece)
                events = self.wire.feed(bytes(piece[:received]))
            if not received:
                return
            self.bytes_heard += received
            yield from events

    def discard(self) -> None:
        """Take what has arrived without looking at it; raises ``PeerLost``."""
        piece = memoryview(bytearray(_PIECE_BYTES))
        while self._link.receive_nowait(piece):
            pass

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._link.fileno()

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        self._link.close()
