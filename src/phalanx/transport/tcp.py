"""TCP connections: making them, tuning them, accepting them."""

import socket
import sys
import time
from collections.abc import Sequence

from phalanx.errors import ConfigError, ConnectError
from phalanx.transport.address import format_address, is_loopback
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.wire import Address

_ATTEMPT_S = 3.0  # one silent address must not use up the time of the others
_FIRST_NAP_S, _LONGEST_NAP_S = 0.02, 0.5
_LOOPBACK_BUFFER_BYTES = 1 << 21  # fits the processor's cache; what the kernel would grow to does not (docs/log.md)


class Listener:
    """A port on which connections arrive."""

    def __init__(self, host: str, port: int = 0) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            where = format_address(Address(host=host, port=port))
            raise ConfigError(f"cannot listen on {where}: {error.strerror}; choose another address or port") from error
        self._socket.setblocking(False)

    @property
    def address(self) -> Address:
        """Where it listens, with the port the system chose."""
        host, port = self._socket.getsockname()[:2]
        return Address(host=host, port=port)

    def accept_nowait(self) -> tuple[socket.socket, str] | None:
        """A connection that has arrived and the address it came from, or None."""
        try:
            connected, origin = self._socket.accept()
        except OSError:  # none there, or it hung up before it was accepted
            return None
        tune(connected)
        connected.setblocking(False)
        return connected, format_address(Address(host=origin[0], port=origin[1]))

    def fileno(self) -> int:
        """Readable when a connection has arrived."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening. Closing twice is harmless."""
        self._socket.close()


def connect(
    addresses: Sequence[Address], deadline: Deadline, *, whom: str, peer: int | None = None, epoch: Epoch | None = None
) -> socket.socket:
    """A connection to the first of ``addresses`` that answers, each tried under every name it resolves to.

    They are tried again, with growing pauses, until the deadline: the other side may still be starting.
    """
    nap_s = _FIRST_NAP_S
    while True:
        if epoch:
            epoch.check()
        failures: list[str] = []
        for address in addresses:
            connected = _try(address, deadline, failures)
            if connected is not None:
                return connected
        if deadline.remaining_s() <= nap_s:
            raise ConnectError(
                f"{whom} could not be reached within {deadline.seconds:g} s: {'; '.join(failures) or 'no address'}. "
                "Is it running, and does a firewall lie between?",
                peer=peer,
            )
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)


def tune(connected: socket.socket) -> None:
    """Small frames leave at once, and a peer whose machine vanished is noticed."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    if is_loopback(connected.getsockname()[0]):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOOPBACK_BUFFER_BYTES)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOOPBACK_BUFFER_BYTES)


def _try(address: Address, deadline: Deadline, failures: list[str]) -> socket.socket | None:
    try:
        names = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        failures.append(f"{address.host}: {error.strerror}")
        return None
    for family, kind, protocol, _, where in names:
        candidate = socket.socket(family, kind, protocol)
        candidate.settimeout(max(0.001, min(deadline.remaining_s(), _ATTEMPT_S)))
        try:
            candidate.connect(where)
            if candidate.getsockname() == candidate.getpeername():
                raise ConnectionRefusedError(0, "nobody listens there")  # TCP met itself
        except OSError as error:
            candidate.close()
            failures.append(
                f"{format_address(Address(host=str(where[0]), port=address.port))}: {error.strerror or error}"
            )
        else:
            tune(candidate)
            return candidate
    return None
