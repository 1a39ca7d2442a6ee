"""Accepting connections: both sides prove who they are before anything else is read."""

import logging
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.errors import ConfigError, PhalanxError
from phalanx.transport.address import format_address, is_loopback
from phalanx.transport.credentials import Credentials
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.transport.fork import close_in_children
from phalanx.transport.shortage import explain_shortage
from phalanx.transport.socket_handshake import SocketHandshake, awaited
from phalanx.transport.stream import NOT_NOW
from phalanx.transport.tcp import Listener, connect
from phalanx.wire import Address, Purpose

_PROOF_S = 10.0  # to prove oneself
_AWAY_S = 1.0  # if we look at a connection this much too late, the delay is ours
_PAUSE_S = 1.0  # when this machine has no descriptor left
_MOST_UNPROVEN = 512
_MOST_AT_ONCE = 64  # accepted in one go, so that the others get their turn
_log = logging.getLogger("phalanx")


@dataclass(frozen=True, slots=True)
class ProvenConnection:
    """A connection whose other side has proven itself. Its socket does not block.

    ``opening`` is what was read of another protocol's first message, and empty in ours.
    """

    socket: socket.socket
    origin: str
    opening: bytes = b""


class Acceptor:
    """Listens, and accepts only connections that know the token and come for ``purpose``; it logs the others.

    It never waits. Its owner polls its descriptor, and calls ``arrivals`` when that is readable or ``next_due`` has
    come. ``knows_foreign`` says from the first bytes of a connection whether it speaks another protocol that the owner
    understands: such a connection has nothing to prove. Without a token an acceptor listens only on this machine.
    """

    def __init__(
        self,
        host: str,
        port: int,
        credentials: Credentials,
        purpose: Purpose,
        *,
        knows_foreign: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._listener = Listener(host, port)
        self.address: Address = self._listener.address
        if credentials.token is None and not is_loopback(self.address.host):
            self._listener.close()
            raise ConfigError(
                f"{format_address(self.address)} is reachable from other machines, and without a token anybody could "
                "join: make one with `phalanx token > FILE` and pass --token-file FILE, or bind to 127.0.0.1"
            )
        self.credentials = credentials
        self._purpose = purpose
        self._knows_foreign = knows_foreign
        self._selector = close_in_children(selectors.DefaultSelector())
        self._selector.register(self._listener, selectors.EVENT_READ, self)
        self._strangers: dict[SocketHandshake, float] = {}  # in the order in which they came: until when they have time
        self._paused_until: float | None = None

    @property
    def next_due(self) -> float | None:
        """The time, by the monotonic clock, at which to call ``arrivals`` even if nothing happens; or None."""
        pause = [] if self._paused_until is None else [self._paused_until]
        return min([*self._strangers.values(), *pause], default=None)

    def fileno(self) -> int:
        """The descriptor to poll: readable when there is something to do."""
        return self._selector.fileno()

    def arrivals(self) -> list[ProvenConnection]:
        """Return the connections that have proven themselves since the last time."""
        ready = {key.fileobj: key.data for key, _ in self._selector.select(0)}
        has_callers = ready.pop(self._listener, None) is not None
        arrived = [arrival for handshake in ready.values() if (arrival := self._attend(handshake))]
        if has_callers:
            self._accept()
        self._judge(time.monotonic())
        return arrived

    def close(self) -> None:
        """Stop listening, and close connections that have not proven themselves. Closing twice is harmless."""
        self._listener.close()
        for handshake in self._strangers:
            handshake.socket.close()
        self._selector.close()

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                accepted = self._listener.accept_nowait()
            except OSError as error:  # it stays readable, so do not look at it for a while
                _log.warning(
                    "nobody can connect to %s for now: %s", format_address(self.address), explain_shortage(error)
                )
                self._selector.unregister(self._listener)
                self._paused_until = time.monotonic() + _PAUSE_S
                return
            if accepted is None:
                return
            self._receive(*accepted)

    def _receive(self, connected: socket.socket, origin: str) -> None:
        try:
            handshake = SocketHandshake(
                connected,
                origin,
                self.credentials,
                self._purpose,
                server_side=True,
                knows_foreign=self._knows_foreign,
            )
        except OSError as error:
            _log_refusal(origin, error)
            return
        self._strangers[handshake] = time.monotonic() + _PROOF_S
        self._selector.register(handshake.socket, selectors.EVENT_READ, handshake)
        if len(self._strangers) > _MOST_UNPROVEN:
            self._send_away(
                next(iter(self._strangers)), TimeoutError("it had not proven itself when too many others came")
            )

    def _attend(self, handshake: SocketHandshake) -> ProvenConnection | None:
        try:
            handshake.advance()
        except NOT_NOW as busy:
            self._selector.modify(handshake.socket, awaited(busy), handshake)
            return None
        except (OSError, PhalanxError) as error:
            self._send_away(handshake, error)
            return None
        self._forget(handshake)
        return ProvenConnection(handshake.socket, handshake.origin, handshake.opening)

    def _judge(self, now: float) -> None:
        if self._paused_until is not None and now >= self._paused_until:
            self._selector.register(self._listener, selectors.EVENT_READ, self)
            self._paused_until = None
        for handshake, due in list(self._strangers.items()):
            if now - due > _AWAY_S:
                self._strangers[handshake] = now + _PROOF_S
            elif now >= due:
                self._send_away(handshake, TimeoutError(f"it did not prove itself within {_PROOF_S:g} s"))

    def _send_away(self, handshake: SocketHandshake, error: PhalanxError | OSError) -> None:
        _log_refusal(handshake.origin, error)
        self._forget(handshake)
        handshake.hang_up()

    def _forget(self, handshake: SocketHandshake) -> None:
        self._selector.unregister(handshake.socket)
        del self._strangers[handshake]


def call(
    addresses: Sequence[Address],
    deadline: Deadline,
    credentials: Credentials,
    purpose: Purpose,
    *,
    whom: str,
    peer: int | None = None,
    epoch: Epoch | None = None,
    greet: Callable[[socket.socket], None] | None = None,
) -> socket.socket:
    """Return a connection to the first of ``addresses`` at which both sides have proven themselves.

    ``greet`` is what else has to go well on it before the deadline. The socket that is returned blocks.
    """

    def prove(connected: socket.socket, patience: Deadline) -> socket.socket:
        handshake = SocketHandshake(connected, whom, credentials, purpose, server_side=False)
        try:
            handshake.wait_until_proven(patience, epoch)
            if greet:
                greet(handshake.socket)
        except ConnectionRefusedError:
            handshake.hang_up()
            raise
        except ConnectionError as error:
            handshake.hang_up()
            raise ConnectionResetError("it hung up on us; do both sides use TLS?") from error
        except BaseException:
            handshake.hang_up()
            raise
        handshake.socket.settimeout(None)
        return handshake.socket

    return connect(addresses, deadline, whom=whom, peer=peer, epoch=epoch, prove=prove)


def _log_refusal(origin: str, error: PhalanxError | OSError) -> None:
    _log.warning("refused a connection from %s: %s", origin, getattr(error, "strerror", None) or error)
