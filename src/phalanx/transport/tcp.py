"""TCP connections: making them, tuning them, accepting them."""

import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import ConfigError, ConnectError, PeerLost, PhalanxError, ProtocolError
from phalanx.transport.address import format_address, is_loopback
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.transport.fork import close_in_children
from phalanx.transport.shortage import is_shortage
from phalanx.wire import Address

_PATIENCE_S = 5.0  # until the owner of a connection says otherwise
_ATTEMPT_S = 3.0  # one silent address must not use up the time of the others
_FIRST_NAP_S, _LONGEST_NAP_S = 0.02, 0.5
_TCP_INFO = struct.Struct("=2xBB4xI44xI")
"""Of linux/tcp.h: retransmits, unanswered probes, microseconds between retransmits, milliseconds since an answer."""
_LOOPBACK_BUFFER_BYTES = 1 << 21  # fits the processor's cache; what the kernel would grow to does not (docs/log.md)

Prove = Callable[[socket.socket, Deadline], socket.socket]
"""Makes a bare connection one that has proven itself, before the deadline; closes it and raises if that fails."""


class Listener:
    """A port on which connections arrive."""

    def __init__(self, host: str, port: int = 0) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._socket = close_in_children(socket.create_server((host, port), family=family, backlog=4096))
        except OSError as error:
            where = format_address(Address(host=host, port=port))
            if is_shortage(error):
                raise
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ConfigError(f"cannot listen on {where}: {why}; choose another address or port") from error
        self._socket.setblocking(False)

    @property
    def address(self) -> Address:
        """Where it listens, with the port the system chose."""
        host, port = self._socket.getsockname()[:2]
        return Address(host=host, port=port)

    def accept_nowait(self) -> tuple[socket.socket, str] | None:
        """Return a connection that has arrived and the address it came from, or None.

        Raises ``OSError`` if this process has no descriptor left for it; then the connection waits.
        """
        try:
            connected, origin = self._socket.accept()
            close_in_children(connected)
        except OSError as error:
            if is_shortage(error):
                raise
            return None  # none there, or it hung up before it was accepted
        try:
            tune(connected)
        except OSError:  # it has hung up
            connected.close()
            return None
        connected.setblocking(False)
        return connected, format_address(Address(host=origin[0], port=origin[1]))

    def fileno(self) -> int:
        """The descriptor to poll: readable when a connection has arrived."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening. Closing twice is harmless."""
        self._socket.close()


def connect(
    addresses: Sequence[Address],
    deadline: Deadline,
    *,
    whom: str,
    peer: int | None = None,
    epoch: Epoch | None = None,
    prove: Prove | None = None,
) -> socket.socket:
    """Return a connection to the first of ``addresses`` that answers, each tried under every name it resolves to.

    All are tried again, with growing pauses, until the deadline, since the other side may still be starting. If each
    of them has refused us in words, that is final.
    """
    nap_s = _FIRST_NAP_S
    failures = _Failures()
    while True:
        _check(epoch, whom, peer)
        failures.words.clear()
        for address in addresses:
            connected = _try(address, deadline, prove, failures)
            if connected is not None:
                return connected
        _check(epoch, whom, peer)
        is_late = deadline.remaining_s() <= nap_s
        if failures.refusals and (is_late or len(failures.refusals) == len(set(addresses))):
            raise _unwelcome(whom, peer, *failures.refusals.popitem())
        if is_late:
            raise ConnectError(
                f"{whom} could not be reached within {deadline.seconds:g} s: "
                f"{'; '.join(failures.words) or 'no address'}. Is it running, and does a firewall lie between?",
                peer=peer,
            )
        _nap(nap_s, epoch)
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)


def _check(epoch: Epoch | None, whom: str, peer: int | None) -> None:
    """Raise the reason if it is no use to try again."""
    if epoch:
        epoch.check()
        if peer in epoch.left:
            raise PeerLost(f"{whom} left the group before this rank made a link to it", peer=peer)


def _nap(seconds: float, epoch: Epoch | None) -> None:
    """Wait a while, or until the epoch is revoked."""
    poll = select.poll()
    if epoch:
        poll.register(epoch, select.POLLIN)
    poll.poll(seconds * 1000)


def tune(connected: socket.socket) -> None:
    """Set the socket up: small frames leave at once, and a machine that has vanished is noticed."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connected, _PATIENCE_S)
    if is_loopback(connected.getsockname()[0]):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOOPBACK_BUFFER_BYTES)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOOPBACK_BUFFER_BYTES)


def keep_alive(connected: socket.socket, patience_s: float, *, is_always_read: bool = False) -> None:
    """Have the kernel break a connection whose other end has been out of reach for ``patience_s`` (on Linux).

    The kernel probes a connection on which nothing is sent, in whole seconds: it needs 2 s at least. If the peer reads
    all the time (``is_always_read``), data that it does not acknowledge breaks the connection as well. On a link this
    must not be: there TCP_USER_TIMEOUT would also break the connection to a peer that is busy and does not read yet.
    There ``is_out_of_reach`` tells the two apart.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform != "linux":
        return
    every_s = max(1, int(patience_s / 5))  # a pause and three probes: found after four fifths of the patience
    probes = max(1, min(3, int(patience_s) - 1))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    if is_always_read:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(700 * patience_s))


def is_out_of_reach(connected: socket.socket, patience_s: float) -> bool:
    """Whether the other machine has not acknowledged for ``patience_s`` what was sent to it again and again (on Linux).

    The kernel does not probe a connection on which data is on its way (see ``keep_alive``). The machine of a peer that
    is alive but does not read answers every retransmit and every probe.
    """
    if sys.platform != "linux":
        return False
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    retransmits, probes, interval_us, heard_ms = _TCP_INFO.unpack(info)
    is_unanswered = probes > 1 or (retransmits > 0 and 1000 * heard_ms > interval_us)
    return bool(is_unanswered and heard_ms > 700 * patience_s)


@dataclass(frozen=True, slots=True)
class _Failures:
    """Why the addresses could not be used, in the order in which they were tried; refusals also by address.

    An address that has refused us and is silent when it is tried again, perhaps for the little time that is left, still
    refuses us.
    """

    words: list[str] = field(default_factory=list)
    refusals: dict[Address, PhalanxError] = field(default_factory=dict)


def _try(address: Address, deadline: Deadline, prove: Prove | None, failures: _Failures) -> socket.socket | None:
    try:
        names = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for a name that none can have, such as a..b
        failures.words.append(f"{address.host}: {getattr(error, 'strerror', None) or error}")
        return None
    for family, kind, protocol, _, where in names:
        patience = Deadline.after(max(0.001, min(deadline.remaining_s(), _ATTEMPT_S)))
        origin = format_address(Address(host=str(where[0]), port=address.port))
        try:
            connected = _reach(close_in_children(socket.socket(family, kind, protocol)), where, patience)
            return prove(connected, patience) if prove else connected
        except OSError as error:
            if is_shortage(error):
                raise
            failures.words.append(f"{origin}: {error.strerror or error}")
            if not isinstance(error, TimeoutError):
                failures.refusals.pop(address, None)  # somebody else is there now, or nobody
        except PhalanxError as error:
            failures.words.append(f"{origin}: {error}")
            failures.refusals[address] = error
    return None


def _reach(candidate: socket.socket, where: tuple[Any, ...], patience: Deadline) -> socket.socket:
    # Any: what getaddrinfo gives, each family its own
    try:
        candidate.settimeout(max(0.001, patience.remaining_s()))  # zero would mean not to wait at all
        candidate.connect(where)
        if candidate.getsockname() == candidate.getpeername():
            raise ConnectionRefusedError(0, "nobody listens there")  # TCP met itself
        tune(candidate)
    except OSError:
        candidate.close()
        raise
    return candidate


def _unwelcome(whom: str, peer: int | None, address: Address, error: PhalanxError) -> PhalanxError:
    words = f"cannot talk to {whom} at {format_address(address)}: {error}"
    if isinstance(error, ProtocolError):
        return type(error)(words, peer=peer)
    return type(error)(words)
