"""Where a rank can be reached."""

import contextlib
import ipaddress
import socket

from phalanx.errors import ConfigError
from phalanx.wire import Address


def parse_address(text: str) -> Address:
    """Read ``host:port`` or ``[ipv6]:port``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not (colon and host and port.isdecimal() and int(port) <= 65535):
        raise ConfigError(f"{text!r} is no address: write host:port, as in 10.0.0.5:29400 or [fd00::5]:29400")
    return Address(host=host, port=int(port))


def format_address(address: Address) -> str:
    """Return ``host:port``, with brackets around an IPv6 host."""
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host`` under that name."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def own_hosts(reached_from: str) -> tuple[str, ...]:
    """Return the addresses under which peers may reach this machine, best first.

    ``reached_from`` is the local end of a connection that works, so it comes first. A loopback address helps only
    peers on this machine: then the addresses that the routing table and the resolver know are added for the others.
    Names that resolve to a loopback address (Debian's 127.0.1.1) are never published.
    """
    if not is_loopback(reached_from):
        return (reached_from,)
    found = [reached_from]
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((somewhere, 9))  # a datagram socket only looks up the route: nothing is sent
            found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)]
    others = [host for host in found[1:] if not is_loopback(host) and "%" not in host]
    return tuple(dict.fromkeys([reached_from, *others]))
