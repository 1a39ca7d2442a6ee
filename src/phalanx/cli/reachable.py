"""The address of this machine for others."""

from ipaddress import ip_address

from phalanx.launch.env import LOOPBACK
from phalanx.transport import own_hosts
from phalanx.wire import Address


def reachable(address: Address) -> Address:
    """Return where others reach what listens on ``address``, if an address of this machine is known."""
    host = address.host
    if ip_address(host).is_unspecified:
        host = next((each for each in own_hosts(LOOPBACK)[1:] if (":" in each) == (":" in host)), host)
    return Address(host=host, port=address.port)
