"""Runs a program on several workers of this machine."""

import secrets
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError
from phalanx.group import Over
from phalanx.launch.crew import Crew, Signals
from phalanx.launch.env import LOOPBACK, Launch, worker_environ
from phalanx.launch.nursery import Nursery
from phalanx.launch.output import RankLogs
from phalanx.launch.stopping import Stopping
from phalanx.launch.supervision import LEFT, Supervision
from phalanx.launch.torch_env import reserve_port
from phalanx.launch.verdict import judge
from phalanx.transport import Credentials, make_token, shortage_in_words, usable_cpus
from phalanx.wire import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: a script or module with its arguments, on how many workers, and how they are connected.

    ``hosts`` is the number of simulated machines, over which the ranks are spread evenly. ``patience_s`` and
    ``stall_s`` are None for the defaults. ``grace_s`` is how long workers that have joined may take to end after a
    signal. They get ``stop_signal``, or the signal that arrived. With ``may_leave`` that makes them leave a run that
    goes on without them, which is no failure. With ``has_ranks``, worker number n asks for rank n; otherwise workers
    get their ranks when they join. With ``log_dir``, the output of each rank is also written to a file there.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    workers: int = 2
    hosts: int = 1
    over: Over = Over.AUTO
    patience_s: float | None = None
    stall_s: float | None = None
    grace_s: float = 3.0
    stop_signal: signal.Signals | None = None
    may_leave: bool = False
    has_ranks: bool = True
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"a program needs at least one worker, not {self.workers}: pass -n 2, for example")
        if not 1 <= self.hosts <= self.workers:
            raise ConfigError(f"{self.workers} workers can be spread over 1 to {self.workers} hosts, not {self.hosts}")
        if not self.is_module and not Path(self.name).is_file():
            why = "is a directory" if Path(self.name).is_dir() else "does not exist"
            raise ConfigError(f"{self.name} {why}: pass a Python script, or -m and the name of a module")

    @property
    def command(self) -> list[str]:
        """What follows ``python`` on a command line."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]


def run(program: Program, credentials: Credentials | None = None) -> int:
    """Start a coordinator and the workers of one group, run the program on each, and return the exit status.

    Without ``credentials`` the workers get a fresh token that nobody else knows.
    """
    job = secrets.token_hex(8)
    credentials = credentials or Credentials(make_token().encode())
    terms = Terms.exactly(program.workers, job, patience_s=program.patience_s, stall_s=program.stall_s)
    with shortage_in_words("cannot start the coordinator"):
        serving = Coordinator(terms=terms, credentials=credentials)
    machines = [rank * program.hosts // program.workers for rank in range(program.workers)]
    with serving as coordinator, reserve_port(LOOPBACK) as master:
        launches = [
            Launch(
                rank=rank if program.has_ranks else None,
                size=program.workers,
                job=job,
                coordinator=(coordinator.address,),
                host=f"host{machine}" if program.hosts > 1 else None,
                over=program.over,
                credentials=credentials,
                local=(machines[:rank].count(machine), machines.count(machine)),
                master=master,
            )
            for rank, machine in enumerate(machines)
        ]
        return start(program, launches)


def join(program: Program, coordinator: Address, credentials: Credentials) -> int:
    """Run the program on workers that join the group of a running coordinator, and return the exit status."""
    launch = Launch.joining(coordinator, credentials, (program.patience_s, program.stall_s), program.over)
    return start(program, number_here([launch] * program.workers))


def number_here(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches, each with its number among them."""
    return [replace(launch, local=(number, len(launches))) for number, launch in enumerate(launches)]


def start(program: Program, launches: Sequence[Launch]) -> int:
    """Start the workers, and return the exit status: 0, or that of the worker that failed first.

    The output of the workers is printed line by line, each line with the rank of its worker in front. SIGINT and
    SIGTERM are passed on to the workers, so only the main thread can call this. When it returns, all workers have
    ended, and so have the processes that they started, except those that began a session of their own.
    """
    return _run(program, launches, partial(Crew, len(launches))).status


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit status of a run; ``is_lost`` says that its state died with the last of its workers."""

    status: int
    is_lost: bool = False


def supervise(
    program: Program,
    launches: Sequence[Launch],
    replacement: Program,
    count_steps: Callable[[], int],
    has_others: Callable[[Collection[int]], bool] = lambda _: False,
    beside: Callable[[Crew], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> Ending:
    """Start the workers of an elastic run as ``start`` does. For each that is killed, start a ``replacement``.

    ``has_others`` returns whether others than these processes are in the run, too. ``beside`` makes what goes on beside
    the workers.
    """
    supervision, launches = Supervision(len(launches)), number_here(launches)
    assert program.is_module, "only a module can be imported beforehand"
    with ExitStack() as closing:
        threads = max(1, usable_cpus() // len(launches))
        environ = worker_environ(launches[0], threads)
        nursery = closing.enter_context(Nursery(program.name, environ)) if sys.platform == "linux" else None
        crew = partial(
            Crew,
            len(launches),
            supervision=supervision,
            replacement=replacement.command,
            count_steps=count_steps,
            has_others=has_others,
            nursery=nursery,
        )
        ending = _run(program, launches, crew, beside)
    if supervision.reason:
        sys.stderr.write(f"phalanx: {supervision.reason}\n")
    return ending


def _run(
    program: Program,
    launches: Sequence[Launch],
    make_crew: Callable[..., Crew],
    beside: Callable[[Crew], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> Ending:
    stopping = Stopping(program.grace_s, program.stop_signal)
    stall_s = Terms.exactly(None, stall_s=program.stall_s).stall_s
    logs = RankLogs(program.log_dir) if program.log_dir else None
    with Signals() as signals, make_crew(stopping=stopping, stall_s=stall_s, logs=logs) as crew:
        try:
            for launch in launches:
                crew.start(launch, program.command)
            with beside(crew):
                crew.work(signals)
        except BrokenPipeError:  # nobody reads our output any longer
            return Ending(128 + signal.SIGPIPE)
    if signals.received:
        have_left = program.may_leave and all(end.code in (0, LEFT, -signal.SIGTERM) for end in crew.ends)
        return Ending(0 if have_left else 128 + signals.received[0])
    if crew.is_lost:
        return Ending(1, is_lost=True)
    verdict = judge(crew.final_ends)
    if verdict is None:
        return Ending(0)
    sys.stderr.write(f"\n{verdict}")
    return Ending(verdict.witness.status)
