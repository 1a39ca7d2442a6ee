"""Runs a function of the calling program, or of a notebook, on several workers of this machine."""

import os
import secrets
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from typing import Any, TextIO

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, DeadlineExceeded, RemoteError
from phalanx.launch.env import LOOPBACK, Launch, parse_over, worker_environ
from phalanx.launch.forked_worker import ForkedWorker
from phalanx.launch.output import Lines, prefix
from phalanx.launch.torch_env import reserve_port
from phalanx.launch.verdict import Name
from phalanx.transport import Credentials, Deadline, make_token, usable_cpus
from phalanx.wire import decode_value

_LOOK_S = 0.05
_NOTICE_S = 5.0  # for the other ranks, after one has failed: they notice by themselves, and say more
_READ_BYTES = 1 << 16


def spawn(
    function: Callable[..., Any],  # Any: whatever it takes, behind the group, and returns
    *arguments: object,
    workers: int = 2,
    over: str = "auto",
    lanes: int | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Call ``function(group, *arguments)`` on workers of this machine, and return what they returned, by rank.

    The workers are forks of this process, so the function may be any that this program or notebook has; Linux only.
    They have a copy of all its values, and only their results come back: what ``Group.all_gather_object`` takes. Their
    output is printed here, each line with its rank. The first error of a worker is raised as a ``RemoteError`` with its
    traceback, and the others are ended. ``over`` and ``lanes`` are those of ``connect``. ``timeout_s`` limits the whole
    call; None sets no limit.

    A process that has used CUDA cannot be forked. If torch is imported here, each worker computes with one thread.
    """
    _check(workers)
    options = {"over": parse_over(over, "over").value, "lanes": lanes}
    deadline = Deadline.after(timeout_s) if timeout_s is not None else None
    with ExitStack() as closing:
        # Fork before the coordinator's thread exists: a fork copies only the thread that calls it.
        crew: list[ForkedWorker] = []
        for rank in range(workers):
            crew.append(ForkedWorker(rank, function, arguments, options))
            closing.callback(crew[-1].close)
        credentials, job = Credentials(make_token().encode()), secrets.token_hex(8)
        coordinator = closing.enter_context(Coordinator(terms=Terms.exactly(workers, job), credentials=credentials))
        master = closing.enter_context(reserve_port(LOOPBACK))
        for worker in crew:
            launch = Launch(
                rank=worker.rank,
                size=workers,
                job=job,
                coordinator=(coordinator.address,),
                credentials=credentials,
                local=(worker.rank, workers),
                master=master,
            )
            worker.begin(worker_environ(launch, max(1, usable_cpus() // workers)))
        ends = _Watch(crew).wait(deadline)
    return _conclude(ends)


@dataclass(frozen=True, slots=True)
class SpawnEnd:
    """How a spawned worker ended: its outcome, which is empty if it was killed, and its exit code."""

    rank: int
    outcome: dict[str, Any]  # Any: see ForkedWorker
    code: int
    was_stopped: bool

    @property
    def has_failed(self) -> bool:
        """Whether there is no result."""
        return "result" not in self.outcome

    @property
    def words(self) -> str:
        """What to say of a worker that failed."""
        if "error" in self.outcome:
            return f"rank {self.rank} failed: {self.outcome['error']}\n\n{self.outcome['traceback']}"
        if self.code >= 0:
            return f"rank {self.rank} ended with exit code {self.code} and returned nothing"
        return f"rank {self.rank} was killed by {signal.Signals(-self.code).name}"


def judge_spawned(ends: Sequence[SpawnEnd]) -> SpawnEnd | None:
    """Return the worker that failed first, if any: one that failed by itself before those that only followed."""
    failed = [end for end in ends if end.has_failed]

    def order(end: SpawnEnd) -> tuple[bool, bool, float]:
        return end.was_stopped, end.outcome.get("is_consequence", False), end.outcome.get("at", 0.0)

    return min(failed, key=order, default=None)


def _check(workers: int) -> None:
    if workers < 1:
        raise ConfigError(f"a function needs at least one worker, not {workers}")
    if sys.platform != "linux":
        raise ConfigError("spawn forks this process, as only Linux can safely: write a script, and use `phalanx run`")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        words = "this process has used CUDA, and what it holds there cannot be forked"
        raise ConfigError(f"{words}: call spawn before anything is on a GPU, or write a script and use `phalanx run`")


class _Watch:
    """Prints what the workers write until all have ended. When one fails, it ends the others soon."""

    def __init__(self, crew: Sequence[ForkedWorker]) -> None:
        self._crew = crew
        self._ends: dict[int, SpawnEnd] = {}
        self._stop_at: float | None = None
        pairs = [(each, pair) for each in crew for pair in ((each.out, sys.stdout), (each.err, sys.stderr))]
        self._streams = [_Stream(each.rank, len(crew), *pair) for each, pair in pairs]

    def wait(self, deadline: Deadline | None) -> list[SpawnEnd]:
        """Return how each worker has ended, by rank."""
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                selector.register(stream.source, selectors.EVENT_READ, stream)
            for worker in self._crew:
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            while len(self._ends) < len(self._crew):
                for key, _ in selector.select(_LOOK_S):
                    if not key.data.read_nowait():
                        selector.unregister(key.fileobj)
                self._note_ends()
                self._stop_late(deadline)
        for stream in self._streams:
            stream.finish()
        return [self._ends[rank] for rank in sorted(self._ends)]

    @property
    def _running(self) -> list[ForkedWorker]:
        return [worker for worker in self._crew if worker.rank not in self._ends]

    def _note_ends(self) -> None:
        for worker in self._running:
            if worker.poll() is None:
                continue
            has_stopped = self._stop_at is not None and time.monotonic() >= self._stop_at
            end = self._ends[worker.rank] = _read_end(worker, was_stopped=has_stopped)
            if end.has_failed and self._stop_at is None:
                self._stop_at = time.monotonic() + _NOTICE_S

    def _stop_late(self, deadline: Deadline | None) -> None:
        if deadline is not None and deadline.has_passed and self._running:
            late = ", ".join(f"rank {worker.rank}" for worker in self._running)
            raise DeadlineExceeded(f"the function has not returned within {deadline.seconds:g} s on {late}")
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            for worker in self._running:
                os.kill(worker.pid, signal.SIGKILL)


def _read_end(worker: ForkedWorker, *, was_stopped: bool) -> SpawnEnd:
    assert worker.code is not None, "it has ended"
    found = decode_value(memoryview(worker.outcome), _find_class) if worker.outcome else {}
    return SpawnEnd(worker.rank, found, worker.code, was_stopped)


def _conclude(ends: Sequence[SpawnEnd]) -> list[Any]:
    if (first := judge_spawned(ends)) is not None:
        raise RemoteError(first.words)
    return [end.outcome["result"] for end in ends]


def _find_class(name: str) -> type | None:
    """Return a class of this program by its name: what our own forks send is as good as what we have."""
    module, _, path = name.rpartition(".")
    while module and module not in sys.modules:
        module, _, outer = module.rpartition(".")
        path = f"{outer}.{path}"
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


class _Stream:
    """Prints one output stream of a worker, line by line."""

    def __init__(self, rank: int, size: int, source: FileIO, target: TextIO) -> None:
        self.source = source
        self._target = target
        self._before = prefix(Name("rank", rank), size, is_coloured=False).decode()
        self._lines = Lines()

    def read_nowait(self) -> bool:
        """Print what is there; return False at the end of the stream."""
        try:
            data = os.read(self.source.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        self._print(self._lines.feed(data))
        return bool(data)

    def finish(self) -> None:
        """Print all that is left. A process that the worker has started may still have the other end."""
        while select.select([self.source], [], [], 0)[0] and self.read_nowait():
            pass
        self._print(self._lines.end())

    def _print(self, lines: list[bytes]) -> None:
        for line in lines:
            self._target.write(f"{self._before}{line.decode(errors='replace')}\n")
        if lines:
            self._target.flush()
