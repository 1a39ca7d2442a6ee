"""Starts the workers of every system and lets the systems measure in turn."""

import importlib.metadata
import importlib.util
import itertools
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from phalanx.bench.all_reduce.plan import AllReduceRow, AllReduceSystem, Ready, Task, Times, rows, schedule, slowest
from phalanx.bench.text import format_size
from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import DeadlineExceeded, PeerLost, PhalanxError
from phalanx.gradient_server import GradientServer, Whole
from phalanx.transport import Deadline, can_share_memory, format_address
from phalanx.wire import Address

_START_S = 120.0  # importing torch in many processes at once takes long on few cores
_TASK_S = 300.0
_END_S = 2.0
_LAST_LINES = 20


def lacking(system: AllReduceSystem) -> str | None:
    """Return what prevents ``system`` from being measured on this machine, or None."""
    match system:
        case AllReduceSystem.GLOO if importlib.util.find_spec("torch") is None:
            return f"torch is not installed: {sys.executable} -m pip install torch"
        case AllReduceSystem.OPENMPI if importlib.util.find_spec("mpi4py") is None:
            return f"mpi4py is not installed: {sys.executable} -m pip install mpi4py"
        case AllReduceSystem.OPENMPI if shutil.which("mpirun") is None:
            return "mpirun was not found: install Open MPI"
        case AllReduceSystem.ARENA | AllReduceSystem.INPLACE | AllReduceSystem.COPY if not can_share_memory():
            return "processes cannot share memory on this machine: measure tcp"
        case _:
            return None


def versions(systems: Sequence[AllReduceSystem]) -> dict[str, str]:
    """Return the versions of the libraries that are measured."""
    found = {"numpy": importlib.metadata.version("numpy")}
    if AllReduceSystem.GLOO in systems:
        found["torch"] = importlib.metadata.version("torch")
    if AllReduceSystem.OPENMPI in systems:
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True)  # noqa: S607
        found["Open MPI"] = said.stdout.splitlines()[0].split()[-1]
    return found


def measure(
    ranks: int, systems: Sequence[AllReduceSystem], sizes: Sequence[int], rounds: int, tell: Callable[[str], None]
) -> list[AllReduceRow]:
    """Measure all systems at all sizes in one run. ``tell`` is called with a line about each measurement.

    Raises ``PeerLost`` or ``DeadlineExceeded`` if a worker dies or stalls; no process is left behind.
    """
    seconds: dict[tuple[int, AllReduceSystem], list[float]] = {
        (size, system): [] for size in sizes for system in systems
    }
    with ExitStack() as stack:
        crews = {}
        for system in systems:
            tell(f"{ranks} ranks, starting {system.value}")
            crews[system] = stack.enter_context(start(system, ranks + (system is AllReduceSystem.STAR_APART)))
        for number, task, system in schedule(systems, sizes, rounds):
            tell(f"{ranks} ranks, round {number + 1} of {rounds}, {format_size(task.bytes)}, {system.value}")
            by_rank = crews[system].measure(task, Deadline.after(_TASK_S))
            seconds[task.bytes, system] += slowest(by_rank)
    return rows(ranks, seconds)


@contextmanager
def start(system: AllReduceSystem, ranks: int) -> Iterator["WorkerPool"]:
    """Start the workers of ``system`` and yield them, connected and waiting. They end with the context."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        meeting = stack.enter_context(_meeting(system, ranks))
        programs = [
            stack.enter_context(_running(command))
            for command in _commands(system, ranks, listener.getsockname()[1], meeting)
        ]
        crew = WorkerPool(system, ranks, programs)
        stack.callback(crew.hang_up)
        crew.gather(listener, Deadline.after(_START_S))
        yield crew


@dataclass(frozen=True, slots=True)
class BenchProcess:
    """A process and the file that its output goes to."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def last_words(self) -> str:
        """Return the last lines of its output."""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:]) or "(none)"


class WorkerPool:
    """The workers of one system, with a connection to each.

    ``programs`` are their processes by rank, or a single process that started them all.
    """

    def __init__(self, system: AllReduceSystem, ranks: int, programs: Sequence[BenchProcess]) -> None:
        self.programs = programs
        self._system = system
        self._ranks = ranks
        self._connections: dict[int, socket.socket] = {}
        self._lines: dict[int, IO[bytes]] = {}

    def gather(self, listener: socket.socket, deadline: Deadline) -> None:
        """Wait until every worker has connected and told its rank."""
        listener.settimeout(0.1)  # how often to check that the workers are alive
        while len(self._connections) < self._ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                self._check_alive("starting")
                if deadline.has_passed:
                    raise self._overdue(self._connections, "starting", deadline) from None
            else:
                self._greet(connection, deadline)

    def measure(self, task: Task, deadline: Deadline) -> list[list[float]]:
        """Have all workers do ``task``, and return the seconds of each iteration by rank."""
        during = f"all-reduces of {format_size(task.bytes)}"
        self._check_alive(during)
        for rank, connection in self._connections.items():
            try:
                connection.sendall(msgspec.json.encode(task) + b"\n")
            except OSError as error:
                raise self._lost(rank, during) from error
        found: dict[int, list[float]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(deadline.remaining_s())
                if not ready:
                    raise self._overdue(found, during, deadline)
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    found[key.data] = self._hear(key.data, during)
        return [found[rank] for rank in range(self._ranks)]

    def hang_up(self) -> None:
        """Close all connections, which makes the workers end."""
        for rank, connection in self._connections.items():
            self._lines[rank].close()
            connection.close()

    def _check_alive(self, during: str) -> None:
        for rank in range(self._ranks):
            if self._program(rank).process.poll() is not None:
                raise self._lost(rank, during)

    def _greet(self, connection: socket.socket, deadline: Deadline) -> None:
        connection.settimeout(max(0.001, deadline.remaining_s()))
        lines = connection.makefile("rb")
        try:
            rank = msgspec.json.decode(lines.readline(), type=Ready).rank
        except (OSError, msgspec.MsgspecError):  # a stranger, or a worker that ended: its process tells
            lines.close()
            connection.close()
        else:
            self._connections[rank], self._lines[rank] = connection, lines

    def _hear(self, rank: int, during: str) -> list[float]:
        try:
            line = self._lines[rank].readline()
        except OSError as error:
            raise self._lost(rank, during) from error
        if not line:
            raise self._lost(rank, during)
        return msgspec.json.decode(line, type=Times).seconds

    def _program(self, rank: int) -> BenchProcess:
        return self.programs[rank % len(self.programs)]

    def _lost(self, rank: int, during: str) -> PeerLost:
        program = self._program(rank)
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(_END_S)  # then its output is complete
        ended = f"{self._system.value}: rank {rank} ended during {during}"
        return PeerLost(f"{ended}. Its last lines:\n{program.last_words()}", peer=rank)

    def _overdue(self, answered: Collection[int], during: str, deadline: Deadline) -> DeadlineExceeded:
        late = [rank for rank in range(self._ranks) if rank not in answered]
        names = " and ".join(f"rank {rank}" for rank in late)
        waited = f"{self._system.value}: {names} did not finish {during} within {deadline.seconds:g} s"
        words = self._program(late[0]).last_words()
        return DeadlineExceeded(f"{waited}. Last lines of rank {late[0]}:\n{words}", peer=late[0])


@contextmanager
def _meeting(system: AllReduceSystem, ranks: int) -> Iterator[str]:
    """Yield the address or file through which the ranks of ``system`` find each other."""
    match system:
        case AllReduceSystem.GLOO:
            with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
                yield str(Path(folder, "store"))
        case AllReduceSystem.OPENMPI:
            yield "mpirun"
        case AllReduceSystem.GRADIENT_SERVER:
            with _meeting(AllReduceSystem.TCP, ranks) as coordinator, _gradient_server(ranks) as server:
                yield f"{coordinator},{server}"
        case _:
            with Coordinator(terms=Terms.exactly(ranks)) as coordinator:
                yield format_address(coordinator.address)


@contextmanager
def _gradient_server(workers: int) -> Iterator[str]:
    """Run a gradient server in this process until its workers disconnect, and yield its address."""

    def serve() -> None:
        with suppress(PhalanxError):  # the workers report their own errors
            server.wait_for_workers(_START_S)
            for step in itertools.count():
                server.exchange(step, Whole())

    with GradientServer(workers=workers, timeout_s=_TASK_S) as server:
        thread = threading.Thread(target=serve, name="phalanx-bench-star", daemon=True)
        thread.start()
        try:
            yield format_address(server.address)
        finally:
            server.close()
            thread.join()


def _commands(system: AllReduceSystem, ranks: int, port: int, meeting: str) -> list[list[str]]:
    driver = format_address(Address(host="127.0.0.1", port=port))
    worker = [sys.executable, "-m", "phalanx.bench.all_reduce.worker", "--system", system.value, "--ranks", str(ranks)]
    worker += ["--driver", driver, "--meeting", meeting]
    if system is not AllReduceSystem.OPENMPI:
        return [[*worker, "--rank", str(rank)] for rank in range(ranks)]
    may_be_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [["mpirun", "-n", str(ranks), "--oversubscribe", *may_be_root, *worker]]


@contextmanager
def _running(command: Sequence[str]) -> Iterator[BenchProcess]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - a command of our own making
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only the driver, which then ends its workers
        )
        try:
            yield BenchProcess(process, output)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that should end by itself; terminate it, then kill it, if it does not."""
    for insist in (process.terminate, process.kill):  # mpirun ends its workers when terminated, not when killed
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
