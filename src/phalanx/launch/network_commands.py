"""The commands of iproute2 that build a network between hosts that are network namespaces."""

INTERFACE = "eth0"
"""The network interface of every host."""

SWITCH_ADDRESS = "10.99.0.254"

_QUEUE = "50ms"  # tbf drops what would wait longer than this
_LEAST_BURST_BYTES = 128 << 10  # two of the largest packets that the kernel hands to a virtual interface


def host_address(host: int) -> str:
    """Return the address of a host, which are numbered from 0 on."""
    return f"10.99.0.{host + 1}"


def switch_commands() -> list[list[str]]:
    """Return the commands that make the switch, in a network namespace of its own."""
    return [
        _words("ip link set lo up"),
        _words("ip link add switch type bridge"),
        _words(f"ip address add {SWITCH_ADDRESS}/24 dev switch"),
        _words("ip link set switch up"),
    ]


def port_commands(host: int, namespace: str, rate_bits: int | None) -> list[list[str]]:
    """Return the commands that connect a host to the switch, for the switch's namespace.

    What leaves the port towards the host is what the host receives, so the rate is limited here too, if it is.
    """
    port = f"port{host}"
    return [
        [*_words(f"ip link add {port} type veth peer name {INTERFACE} netns"), namespace],
        _words(f"ip link set {port} master switch up"),
        *_limit(port, rate_bits),
    ]


def host_commands(host: int, rate_bits: int | None) -> list[list[str]]:
    """Return the commands that set up a host's own end of its line, for the host's namespace.

    Its TCP avoids congestion as Linux does unless it is told otherwise, whatever this machine was told.
    """
    return [
        _words("ip link set lo up"),
        _words(f"ip address add {host_address(host)}/24 dev {INTERFACE}"),
        _words(f"ip link set {INTERFACE} up"),
        _words(f"ip route change 10.99.0.0/24 dev {INTERFACE} congctl cubic"),
        *_limit(INTERFACE, rate_bits),
    ]


def link_command(host: int, *, is_up: bool) -> list[str]:
    """Return the command that pulls or plugs in the cable of a host, for the switch's namespace."""
    return _words(f"ip link set port{host} {'up' if is_up else 'down'}")


def _limit(device: str, rate_bits: int | None) -> list[list[str]]:
    if rate_bits is None:
        return []
    burst_bytes = max(_LEAST_BURST_BYTES, rate_bits // 8 // 1000)  # at least a millisecond, the clock of the kernel
    return [_words(f"tc qdisc add dev {device} root tbf rate {rate_bits}bit burst {burst_bytes}b latency {_QUEUE}")]


def _words(command: str) -> list[str]:
    return command.split()
