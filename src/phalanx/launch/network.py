"""Hosts made of network namespaces.

The namespaces have no names. They exist while a descriptor of this process, or a process inside, refers to them, so
the kernel removes them with all their interfaces however this process ends.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from phalanx.errors import ConfigError
from phalanx.launch.network_commands import host_commands, link_command, port_commands, switch_commands

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_OWN = "/proc/thread-self/ns/net"
_COMMAND_S = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """The network namespaces of the switch and of every host, each by a file that a process of root can open."""

    switch: str
    hosts: tuple[str, ...]

    def set_link(self, host: int, *, is_up: bool) -> None:
        """Cut a host off from all others, or connect it again."""
        with inside(self.switch):
            _run_all([link_command(host, is_up=is_up)])


def lacking() -> str | None:
    """Return what this machine or this user lacks to make hosts; None if nothing."""
    if sys.platform != "linux":
        return f"network namespaces need Linux, and this is {sys.platform}: use a machine with Linux"
    if os.geteuid() != 0:
        return "network namespaces need root: run it with sudo"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} cannot be found: install iproute2"
    return None


@contextmanager
def network(rates: Sequence[int | None]) -> Iterator[Network]:
    """Hosts that are connected by a switch, each over a line with its rate in bits per second, or None for no limit."""
    if reason := lacking():
        raise ConfigError(f"cannot make hosts here: {reason}")
    with ExitStack() as stack:
        made = Network(_make_namespace(stack), tuple(_make_namespace(stack) for _ in rates))
        with inside(made.switch):
            _run_all(switch_commands())
        for host, (namespace, rate_bits) in enumerate(zip(made.hosts, rates, strict=True)):
            with inside(made.switch):
                _run_all(port_commands(host, namespace, rate_bits))
            with inside(namespace):
                _run_all(host_commands(host, rate_bits))
        yield made


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Put the calling thread into a network namespace: sockets made meanwhile, by it or its children, belong there."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def enter(namespace: str) -> None:
    """Move the calling thread, and threads that it starts later, into a network namespace for good."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", descriptor, _CLONE_NEWNET)
    finally:
        os.close(descriptor)


def _make_namespace(stack: ExitStack) -> str:
    with inside(_OWN):
        _call("unshare", _CLONE_NEWNET)
        descriptor = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library; Python has these from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True)[name](*arguments):
        words = os.strerror(ctypes.get_errno())
        raise ConfigError(f"cannot make hosts here: {name} says {words}; it needs CAP_SYS_ADMIN")


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)  # noqa: S603
        if done.returncode:
            raise ConfigError(f"cannot make hosts here: `{' '.join(command)}` says: {done.stderr.strip()}")
