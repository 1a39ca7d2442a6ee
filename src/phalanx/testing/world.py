"""A group on one machine, for tests: every rank a thread, or a process that can be killed."""

import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, PhalanxError
from phalanx.group import Group, Join, Over, connect
from phalanx.testing.outcome import Outcome, observe, pack, unpack
from phalanx.transport import Connector, Deadline, Epoch, Link, MemoryConnector, format_address, parse_address
from phalanx.wire import Address

Function = Callable[[Group], Any]  # Any: tests return what they like
Wrap = Callable[[int, Link], Link]


class World:
    """Runs a function on every rank of a group.

    ``over`` says how data travels: ``"memory"`` (threads only), ``"tcp"`` or ``"arena"``. Ranks are threads, or with
    ``processes`` processes, which can be killed and stopped. ``hosts`` names a simulated host for each rank: ranks of
    different hosts share no memory. ``wrap(rank, link)`` returns what a rank uses instead of a memory link, for example
    ``FaultyLink(link, cut_after=4096)``. With ``lanes`` the group takes steps.
    """

    def __init__(
        self,
        size: int,
        over: str = "memory",
        *,
        processes: bool = False,
        hosts: Sequence[str] | None = None,
        timeout_s: float = 30.0,
        wrap: Wrap | None = None,
        lanes: int | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"a world has at least one rank, not {size}")
        if over not in ("memory", "tcp", "arena"):
            raise ConfigError(f"a world goes over memory, tcp or arena, not {over!r}")
        if processes and over == "memory":
            raise ConfigError("memory links join threads: use tcp or arena between processes")
        if wrap and over != "memory":
            raise ConfigError("only the links of a world over memory can be wrapped")
        self.size = size
        self.over = over
        self.processes = processes
        self.hosts = hosts
        self.timeout_s = timeout_s
        self.wrap = wrap
        self.lanes = lanes

    def run(self, function: Function) -> list[Any]:  # Any: what the function returned
        """Return what ``function(group)`` returned on every rank, by rank, or raise the first error."""
        return self.start(function).results()

    def start(self, function: Function) -> "Run":
        """Start ``function(group)`` on every rank."""
        return _Processes(self, function) if self.processes else _Threads(self, function)

    def join(self, rank: int, coordinator: Address, connector: Connector | None = None) -> Group:
        """Become ``rank`` of this world."""
        over = Over.AUTO if self.over == "arena" else Over.TCP
        host = self.hosts[rank] if self.hosts else None
        join = Join(
            coordinator=(coordinator,),
            rank=rank,
            size=self.size,
            host=host,
            over=over,
            timeout_s=self.timeout_s,
            lanes=self.lanes,
        )
        return connect(join, connector)


class Run:
    """A world at work."""

    def outcomes(self) -> list[Outcome]:
        """Wait for every rank, and return the outcomes of those that were not killed, by rank."""
        raise NotImplementedError

    def results(self) -> list[Any]:  # Any: what the function returned
        """Wait for every rank; return the results by rank, or raise the first error.

        Errors of the function come before errors that only report the failure of another rank.
        """
        outcomes = self.outcomes()
        failed = [outcome for outcome in outcomes if outcome.kind]
        for outcome in sorted(failed, key=lambda each: (isinstance(each.error, PhalanxError), each.at)):
            outcome.unwrap()
        return [outcome.result for outcome in outcomes]

    def kill(self, rank: int) -> None:
        """Kill a rank with SIGKILL."""
        self._signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """Stop a rank with SIGSTOP."""
        self._signal(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        """Let a stopped rank go on."""
        self._signal(rank, signal.SIGCONT)

    def _signal(self, rank: int, number: signal.Signals) -> None:
        raise ConfigError(f"rank {rank} is a thread and cannot get {number.name}: make the World with processes=True")


class _Threads(Run):
    def __init__(self, world: World, function: Function) -> None:
        self._coordinator = Coordinator(terms=Terms.exactly(world.size))
        self._connector = connector = _Wrapping(world.wrap) if world.over == "memory" else None
        self._outcomes: dict[int, Outcome] = {}

        def live(rank: int) -> None:
            def work() -> object:
                with world.join(rank, self._coordinator.address, connector) as group:
                    return function(group)

            self._outcomes[rank] = observe(rank, work)

        self._threads = [threading.Thread(target=live, args=(rank,), name=f"rank {rank}") for rank in range(world.size)]
        for thread in self._threads:
            thread.start()

    def outcomes(self) -> list[Outcome]:
        for thread in self._threads:
            thread.join()
        self._coordinator.close()
        if self._connector:
            self._connector.close()
        return [self._outcomes[rank] for rank in sorted(self._outcomes)]


class _Wrapping(MemoryConnector):
    """Memory links, each wrapped by the test."""

    def __init__(self, wrap: Wrap | None) -> None:
        super().__init__()
        self._wrap = wrap

    def dial(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        link = super().dial(key, rank, peer, deadline, epoch)
        return self._wrap(rank, link) if self._wrap else link

    def accept(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        link = super().accept(key, rank, peer, deadline, epoch)
        return self._wrap(rank, link) if self._wrap else link


class _Processes(Run):
    def __init__(self, world: World, function: Function) -> None:
        # Fork before the coordinator's thread exists: a fork copies only the thread that calls it.
        self._children = [_Child(world, rank, function) for rank in range(world.size)]
        self._coordinator = Coordinator(terms=Terms.exactly(world.size))
        for child in self._children:
            child.begin(self._coordinator.address)

    def outcomes(self) -> list[Outcome]:
        found = [child.outcome() for child in self._children]
        self._coordinator.close()
        return [outcome for outcome in found if outcome is not None]

    def _signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self._children[rank].pid, number)


class _Child:
    """A rank in a process of its own, and a socket to it."""

    def __init__(self, world: World, rank: int, function: Function) -> None:
        self._socket, theirs = socket.socketpair()
        with warnings.catch_warnings():  # Python 3.12 warns of any other thread, even one that only watches the time
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            self._live(world, rank, function, theirs)
        theirs.close()

    def begin(self, coordinator: Address) -> None:
        """Let the rank join its group."""
        self._socket.sendall(format_address(coordinator).encode())

    def outcome(self) -> Outcome | None:
        """Wait for the end of the process; return None if it was killed."""
        data = b"".join(iter(lambda: self._socket.recv(1 << 20), b""))
        os.waitpid(self.pid, 0)
        self._socket.close()
        return unpack(data) if data else None

    @staticmethod
    def _live(world: World, rank: int, function: Function, parent: socket.socket) -> None:
        try:
            coordinator = parse_address(parent.recv(1024).decode())

            def work() -> object:
                with world.join(rank, coordinator) as group:
                    return function(group)

            parent.sendall(pack(observe(rank, work)))
        finally:
            os._exit(0)
