"""A descriptor by which one thread wakes another that polls."""

import contextlib
import socket

from phalanx.transport.fork import close_in_children
from phalanx.transport.shortage import shortage_in_words


class Bell:
    """Can be waited for like a link: readable from ``ring`` until ``silence``."""

    def __init__(self) -> None:
        with shortage_in_words("cannot make a pair of sockets"):
            self._read_end, self._write_end = map(close_in_children, socket.socketpair())
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)

    def ring(self) -> None:
        """Wake whoever waits."""
        with contextlib.suppress(BlockingIOError):  # it has rung often enough
            self._write_end.send(b"!")

    def silence(self) -> None:
        """Wait for the next ring. Look at what it may have announced only after this."""
        with contextlib.suppress(BlockingIOError):
            self._read_end.recv(4096)

    def wake_at(self, size_bytes: int) -> None:
        """Nothing to do."""

    def check(self) -> None:
        """Nothing to do."""

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._read_end.fileno()

    def close(self) -> None:
        """Give the descriptors back. Closing twice is harmless."""
        self._read_end.close()
        self._write_end.close()
