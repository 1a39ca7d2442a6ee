"""A connection for control messages that never waits. The coordinator and its workers both use it."""

import contextlib
import logging
import socket

from phalanx.transport import NOT_NOW, keep_alive
from phalanx.wire import FrameReader, Hello, Look, Message, decode

_READ_BYTES = 1 << 16
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
        self._outbox = bytearray()
        self._reader = FrameReader(limit_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether something could not be sent yet."""
        return bool(self._outbox)

    def keep_alive(self, patience_s: float) -> None:
        """Set the patience: how long the other machine may be out of reach before this connection breaks."""
        with contextlib.suppress(OSError):  # it is broken already, which reading will show
            keep_alive(self.socket, patience_s, is_always_read=True)

    def introduce(self, message: Message) -> None:
        """Learn from its first message who is at the other end."""
        if isinstance(message, Hello) and not self.is_known:
            self.origin = f"{message.name or 'a worker'} at {self.origin}"
            _log.info("%s has come", self.origin)
        self.has_looked |= isinstance(message, Look)
        self.is_known |= isinstance(message, Hello | Look)

    def send_nowait(self, frame: bytes = b"") -> None:
        """Send ``frame`` after what is unsent, as far as there is room. A broken connection is noticed by reading."""
        self._outbox += frame
        with contextlib.suppress(OSError):
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]

    def read_nowait(self) -> list[Message]:
        """Return the messages that have come; raises ``OSError`` if the other end hung up."""
        messages: list[Message] = []
        while True:
            try:
                data = self.socket.recv(_READ_BYTES)
            except NOT_NOW:
                return messages
            if not data:
                raise ConnectionResetError("it hung up")
            self._reader.feed(data)
            messages += [decode(frame[1]) for frame in iter(self._reader.next_frame, None)]
            if len(data) < _READ_BYTES and not getattr(self.socket, "pending", int)():  # TLS may hold more
                return messages

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self.socket.recv(_READ_BYTES)  # or the kernel sends a reset, which may overtake our last message
        self.socket.close()
