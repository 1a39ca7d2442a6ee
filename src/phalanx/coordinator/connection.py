"""A connection for control messages that never waits. The coordinator and its workers both use it."""

import contextlib
import logging
import socket
from itertools import islice

from phalanx.errors import BadFrame
from phalanx.transport import NOT_NOW, keep_alive
from phalanx.wire import AskStacks, Describe, FrameReader, Header, Hello, Kind, Look, Message, PostNote, decode

_READ_BYTES = 1 << 16
_MOST_AT_ONCE = 64  # messages, so that the other connections get their turn
_MOST_UNSENT_BYTES = 1 << 22  # far more than a worker that is stopped is told before it is given up
_log = logging.getLogger("phalanx")


class Connection:
    """A socket, what is still to be read from it and written to it, and ``origin``: who is at the other end.

    It breaks when the machine or the network at the other end has been gone for ``patience_s``.
    """

    def __init__(self, connected: socket.socket, origin: str, limit_bytes: int, patience_s: float) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.keep_alive(patience_s)
        self.origin = origin
        self.is_known = self.has_looked = False
        self.has_more = False
        """Whether messages, or bytes of some, may have come that no poll shows."""
        self._outbox = bytearray()
        self._reader = FrameReader(limit_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether something could not be sent yet."""
        return bool(self._outbox)

    @property
    def is_choked(self) -> bool:
        """Whether the other end has not read what it was told for so long that it must not be told more."""
        return len(self._outbox) > _MOST_UNSENT_BYTES

    def keep_alive(self, patience_s: float) -> None:
        """Set the patience: how long the other machine may be out of reach before this connection breaks."""
        with contextlib.suppress(OSError):  # it is broken already, which reading will show
            keep_alive(self.socket, patience_s, is_always_read=True)

    def introduce(self, message: Message) -> None:
        """Learn from its first message who is at the other end."""
        if isinstance(message, Hello) and not self.is_known:
            self.origin = f"{message.name or 'a worker'} at {self.origin}"
            _log.info("%s has come", self.origin)
        self.has_looked |= isinstance(message, Look | Describe | AskStacks | PostNote)
        self.is_known |= self.has_looked or isinstance(message, Hello)

    def send_nowait(self, frame: bytes = b"") -> None:
        """Send ``frame`` after what is unsent, as far as there is room. A broken connection is noticed by reading."""
        self._outbox += frame
        with contextlib.suppress(OSError):
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]

    def read_nowait(self) -> list[Message]:
        """Return messages that have come, at most 64; raises ``OSError`` if the other end hung up."""
        messages = self._take()
        if not messages:
            try:
                data = self.socket.recv(_READ_BYTES)
            except NOT_NOW:
                self.has_more = False
                return []
            if not data:
                raise ConnectionResetError("it hung up")
            self._reader.feed(data)
            messages = self._take()
        is_deciphered = getattr(self.socket, "pending", int)() > 0  # TLS may hold more
        self.has_more = is_deciphered or len(messages) == _MOST_AT_ONCE
        return messages

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self.socket.recv(_READ_BYTES)  # or the kernel sends a reset, which may overtake our last message
        self.socket.close()

    def _take(self) -> list[Message]:
        return [_decode(*frame) for frame in islice(iter(self._reader.next_frame, None), _MOST_AT_ONCE)]


def _decode(header: Header, payload: bytes) -> Message:
    if header.kind is not Kind.CONTROL:
        raise BadFrame(f"only control messages come here, not {header}")
    return decode(payload)
