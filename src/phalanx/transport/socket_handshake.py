"""The handshake of one connection, carried out on its socket."""

import contextlib
import os
import select
import selectors
import socket
import ssl
from collections.abc import Callable

from phalanx.errors import AuthError
from phalanx.transport.credentials import Credentials, Tls
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.transport.fork import close_in_children, no_fork
from phalanx.transport.stream import NOT_NOW
from phalanx.wire import Handshake, Purpose

_DRAIN_BYTES = 4096


class SocketHandshake:
    """A connection that has yet to prove itself, over TLS if the credentials say so.

    ``opening`` is what it began with, if ``knows_foreign`` recognised another protocol: then it has nothing to prove.
    """

    def __init__(
        self,
        connected: socket.socket,
        origin: str,
        credentials: Credentials,
        purpose: Purpose,
        *,
        server_side: bool,
        knows_foreign: Callable[[bytes], bool] | None = None,
    ) -> None:
        side = Handshake.server if server_side else Handshake.client
        self._handshake = side(purpose, credentials.token, os.urandom(Handshake.NONCE_BYTES))
        self._unsent = self._handshake.begin()
        self._arrived = b""
        self._knows_foreign = knows_foreign
        self.socket = _wrap(connected, credentials.tls, server_side=server_side)
        self.origin = origin
        self.opening = b""

    def advance(self) -> None:
        """Go on without waiting, and return if both sides have proven themselves.

        Raises one of ``NOT_NOW`` while that needs more time, or the reason why they cannot.
        """
        try:
            with no_fork:
                if isinstance(self.socket, ssl.SSLSocket):
                    self.socket.do_handshake()
                self._shake()
        except NOT_NOW:
            raise
        except ssl.SSLEOFError as error:
            raise _hung_up() from error
        except ssl.SSLError as error:
            words = "TLS failed: do both sides use it, with certificates of the same authority?"
            raise AuthError(f"{words} ({error.reason or error})") from error

    def wait_until_proven(self, deadline: Deadline, epoch: Epoch | None = None) -> None:
        """Return when both sides have proven themselves. Raises ``TimeoutError``, or the epoch's error."""
        while True:
            try:
                return self.advance()
            except NOT_NOW as busy:
                poll = select.poll()
                if epoch:
                    poll.register(epoch, select.POLLIN)
                poll.register(self.socket, select.POLLOUT if awaited(busy) == selectors.EVENT_WRITE else select.POLLIN)
                if not poll.poll(deadline.remaining_s() * 1000):
                    raise TimeoutError("connected, but it does not answer") from None
                if epoch:
                    epoch.check()

    def hang_up(self) -> None:
        """Close so that our last words arrive: bytes left unread would cause a reset, which may overtake them."""
        with contextlib.suppress(OSError):
            self.socket.recv(_DRAIN_BYTES)
        self.socket.close()

    def _shake(self) -> None:
        self._send(self._unsent)
        self._unsent = b""
        while wanted := self._handshake.wanted:
            data = self.socket.recv(wanted - len(self._arrived))
            if not data:
                raise _hung_up()
            self._arrived += data
            if len(self._arrived) < wanted:
                continue
            arrived, self._arrived = self._arrived, b""
            if self._is_foreign(arrived):
                self.opening = arrived
                return
            self._send(self._handshake.feed(arrived))
        if self._handshake.error:
            raise self._handshake.error

    def _send(self, data: bytes) -> None:
        if data:
            self.socket.sendall(data)  # there is room: so little, and the first thing we say

    def _is_foreign(self, arrived: bytes) -> bool:
        knows, self._knows_foreign = self._knows_foreign, None  # only the first bytes tell
        return knows is not None and knows(arrived)


def awaited(busy: OSError) -> int:
    """Return the event after which a socket that raised one of ``NOT_NOW`` can go on."""
    return selectors.EVENT_WRITE if isinstance(busy, ssl.SSLWantWriteError) else selectors.EVENT_READ


def _wrap(connected: socket.socket, tls: Tls | None, *, server_side: bool) -> socket.socket:
    connected.setblocking(False)
    if tls is None:
        return connected
    context = tls.server if server_side else tls.client
    try:
        wrapped = context.wrap_socket(connected, server_side=server_side, do_handshake_on_connect=False)
        return close_in_children(wrapped)
    except OSError:
        connected.close()
        raise


def _hung_up() -> ConnectionResetError:
    return ConnectionResetError("it hung up before it said who it is")
