"""Hosts with a network between them that can be cut, on one machine."""

import contextlib
import os
import shutil
import subprocess

import pytest


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


@contextlib.contextmanager
def connected_hosts():
    """Three network namespaces, the first of which joins the other two: their names and addresses.

    The other two have their end of the cable under the name ``cable``.
    """
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    names = [f"phalanx-{os.getpid()}-{place}" for place in "abc"]
    addresses = [f"10.213.0.{1 + place}" for place in range(3)]
    with contextlib.ExitStack() as undo:
        for name in names:
            ip("netns", "add", name)
            undo.callback(ip, "netns", "delete", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "switch", "type", "bridge")
        for place in (1, 2):
            plug = f"plug{place}"
            ip("link", "add", plug, "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[place])
            ip("-n", names[0], "link", "set", plug, "master", "switch", "up")
        for name, device, address in zip(names, ("switch", "cable", "cable"), addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
        yield names, addresses
