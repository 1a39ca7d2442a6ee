"""A link over any connected stream socket."""

import socket
import ssl
import sys

from phalanx.errors import LinkClosed, PeerLost
from phalanx.transport.tcp import is_out_of_reach

NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket that never waits raises where it would have to."""

_WAKE_BYTES = 1 << 17  # two or three packets as the kernel merges them: half as many wake-ups as without


class StreamLink:
    """The ``Link`` over any stream socket: TCP, with TLS or without, or a socket pair inside one process.

    TLS may hold bytes that it has deciphered already and that no poll shows: wait only after 0 bytes were received.
    With ``patience_s`` the connection is TCP, and ``check`` finds a peer that is out of reach for so long.
    """

    def __init__(self, connected: socket.socket, peer: int, patience_s: float | None = None) -> None:
        connected.setblocking(False)
        self.peer = peer
        self._patience_s = patience_s
        self._socket = connected
        self._wakes_at = 1
        # A TLS socket may hold some of the bytes already, and then it would wait for them in vain.
        self.is_duplex = not isinstance(connected, ssl.SSLSocket)
        self._can_choose = self.is_duplex and sys.platform == "linux" and connected.family != socket.AF_UNIX

    def send_nowait(self, data: memoryview) -> int:
        """Hand over as many bytes as there is room for, and return how many."""
        try:
            return self._socket.send(data)
        except NOT_NOW:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def receive_nowait(self, into: memoryview) -> int:
        """Fill ``into`` with what has arrived, and return how many bytes."""
        try:
            received = self._socket.recv_into(into)
        except NOT_NOW:
            return 0
        except OSError as error:
            raise self._lost(error) from error
        if received == 0 and len(into):
            raise PeerLost(f"rank {self.peer} closed its connection", peer=self.peer)
        return received

    def wake_at(self, size_bytes: int) -> None:
        """Let waits go on until so many bytes have arrived; at most ``_WAKE_BYTES``, so that work goes on meanwhile."""
        size_bytes = min(size_bytes, _WAKE_BYTES)
        if self._can_choose and size_bytes != self._wakes_at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
            self._wakes_at = size_bytes

    def fileno(self) -> int:
        """The socket's descriptor."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise LinkClosed(f"the link to rank {self.peer} was closed on this side", peer=self.peer)
        return descriptor

    def check(self) -> None:
        """Raise ``PeerLost`` if what was sent has not been acknowledged for the patience."""
        if self._patience_s is not None and is_out_of_reach(self._socket, self._patience_s):
            raise PeerLost(f"rank {self.peer} is out of reach: its machine acknowledges nothing", peer=self.peer)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _lost(self, error: OSError) -> LinkClosed | PeerLost:
        if self._socket.fileno() < 0:
            return LinkClosed(f"the link to rank {self.peer} was closed on this side", peer=self.peer)
        return PeerLost(f"the connection to rank {self.peer} broke: {error.strerror}", peer=self.peer)
