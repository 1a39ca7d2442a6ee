"""Carries out failures on purpose, while a run is going on."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, Self

from phalanx.errors import ConfigError
from phalanx.launch.chaos import Mishap, Strike, choose_host, choose_worker
from phalanx.launch.mishaps import CUT_SIGNAL, HANG_SIGNAL
from phalanx.launch.resource_count import ResourceCount, count_resources

_LOOK_S = 0.005
_COUNT_S = 2.0
_CALM_STEPS = 2
_FIRST_STEP_S = 0.2  # until steps were measured
_SIGNALS = {
    Mishap.KILL: signal.SIGKILL,
    Mishap.SEGFAULT: signal.SIGSEGV,
    Mishap.STOP: signal.SIGSTOP,
    Mishap.CUT: CUT_SIGNAL,
    Mishap.HANG: HANG_SIGNAL,
    Mishap.JOIN: signal.SIGTERM,
}


class Victims(Protocol):
    """A run, and what can be done to it."""

    @property
    def hosts(self) -> Sequence[Collection[int]]:
        """The processes of the workers that have joined, by host. The first host has the coordinator."""

    @property
    def coordinator(self) -> int | None:
        """The process of the coordinator, if there is one now."""

    def start_another(self, host: int) -> None:
        """Start one more worker."""

    def set_link(self, host: int, *, is_up: bool) -> None:
        """Cut a host off from all others, or connect it again."""


class Workers(Protocol):
    """The workers of one host."""

    @property
    def joined(self) -> list[int]:
        """The processes of those that have joined."""

    def start_another(self) -> None:
        """Start one more."""


class OneHost:
    """A run on this machine, as a storm sees it."""

    def __init__(self, workers: Workers, coordinator: Callable[[], int]) -> None:
        self._workers = workers
        self._coordinator = coordinator

    @property
    def hosts(self) -> list[list[int]]:
        """The processes of the workers that have joined, as one host."""
        return [self._workers.joined]

    @property
    def coordinator(self) -> int:
        """The process of the coordinator."""
        return self._coordinator()

    def start_another(self, _: int) -> None:
        """Start one more worker."""
        self._workers.start_another()

    def set_link(self, host: int, *, is_up: bool) -> None:
        """Refuse: there is no network that could be cut."""
        raise ConfigError(f"host {host} cannot be {'connected' if is_up else 'cut off'}: the run has only one")


@dataclass(frozen=True, slots=True)
class Struck:
    """A mishap that happened, at a time in seconds since 1970, to these processes, after ``step`` steps."""

    time: float
    mishap: Mishap
    step: int
    pids: tuple[int, ...]


@dataclass(slots=True)
class Weather:
    """The strikes that are still to come, and those that have happened.

    ``before`` is what all processes used before the first strike, and ``after`` what they used when the run was last
    seen calm, with as many workers, after ``counted_after`` strikes.
    """

    strikes: list[Strike]
    struck: list[Struck] = field(default_factory=list)
    before: ResourceCount | None = None
    after: ResourceCount | None = None
    counted_after: int = 0


class Storm:
    """Does the strikes of ``weather`` during the block, each when its step is reached and it leaves the run its state.

    ``away_s`` is how long a worker that is stopped, or a host that is cut off, stays so. If the optimizer is shared
    (``is_shared``), a strike waits until the one before was got over: each part of the state has two holders only.
    """

    def __init__(
        self, weather: Weather, victims: Victims, count_steps: Callable[[], int], *, away_s: float, is_shared: bool
    ) -> None:
        self._weather = weather
        self._victims = victims
        self._count_steps = count_steps
        self._away_s = away_s
        self._is_shared = is_shared
        self._hosts: list[list[int]] = []
        self._seen: dict[int, int] = {}  # at which step each worker was first seen among the others
        self._away: dict[int, float] = {}  # workers that are stopped, and until when
        self._cut: dict[int, float] = {}  # hosts that are cut off, and until when
        self._leaving: set[int] = set()  # workers that were asked to leave: they finish a step first
        self._step = self._last_step = 0
        self._step_s, self._step_at = _FIRST_STEP_S, time.monotonic()
        self._most_joined = 0
        self._count_at = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._rage, name="phalanx-storm")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._mend(math.inf)

    def _rage(self) -> None:
        due_at: float | None = None
        strikes = self._weather.strikes
        while strikes and not self._is_over.wait(_LOOK_S):
            self._look()
            strike = strikes[0]
            self._count()
            if self._step < strike.step:
                continue
            if due_at is None:
                due_at = time.monotonic() + strike.moment * self._step_s
            if time.monotonic() >= due_at and self._do(strike):
                self._last_step = self._step
                strikes.pop(0)
                due_at = None
        while not self._is_over.wait(_LOOK_S):
            self._look()
            self._count()

    def _count(self) -> None:
        """Count what the run uses, if it is calm: all workers are there, and have taken two steps together."""
        now, joined, weather = time.monotonic(), len(self._seen), self._weather
        self._most_joined = max(self._most_joined, joined)
        is_calm = bool(joined) and self._step >= max(self._last_step, *self._seen.values()) + _CALM_STEPS
        if joined < self._most_joined or self._away or self._cut or not is_calm or now < self._count_at:
            return
        self._count_at = now + _COUNT_S
        counted = count_resources(os.getpid())
        if weather.struck:
            weather.after, weather.counted_after = counted, len(weather.struck)
        else:
            weather.before = counted

    def _look(self) -> None:
        now, step = time.monotonic(), self._count_steps()
        if step > self._step:
            self._step_s, self._step_at = 0.5 * self._step_s + 0.5 * (now - self._step_at) / (step - self._step), now
        self._step = step
        self._mend(now)
        self._hosts = [list(host) for host in self._victims.hosts]
        joined = [pid for number, host in enumerate(self._hosts) if number not in self._cut for pid in host]
        self._seen = {pid: self._seen.get(pid, step) for pid in joined}

    def _mend(self, now: float) -> None:
        """Let workers go on, and connect hosts, whose time has come."""
        for pid in [pid for pid, until in self._away.items() if now >= until]:
            _send(pid, signal.SIGCONT)
            del self._away[pid]
            self._seen[pid] = self._step
        for host in [host for host, until in self._cut.items() if now >= until]:
            self._victims.set_link(host, is_up=True)
            del self._cut[host]

    def _do(self, strike: Strike) -> bool:
        """Do a strike, and return whether that was possible now."""
        if self._is_shared and self._step <= self._last_step + 1 and strike.mishap is not Mishap.COORDINATOR:
            return False
        at = time.time()
        match strike.mishap:
            case Mishap.COORDINATOR:
                pids = self._kill_coordinator()
            case Mishap.HOST | Mishap.PARTITION:
                pids = self._strike_host(strike)
            case _:
                pids = self._strike_worker(strike)
        if pids:
            self._weather.struck.append(Struck(at, strike.mishap, self._step, pids))
        return bool(pids)

    def _kill_coordinator(self) -> tuple[int, ...]:
        pid = self._victims.coordinator
        if pid is None:
            return ()
        _send(pid, signal.SIGKILL)
        return (pid,)

    def _strike_host(self, strike: Strike) -> tuple[int, ...]:
        """Kill all workers of a host, or cut it off, and return their processes; none if that was not possible."""
        number = choose_host(strike, self._present(), self._holders())
        if number is None:
            return ()
        pids = tuple(self._hosts[number])
        if strike.mishap is Mishap.PARTITION:
            self._cut[number] = time.monotonic() + self._away_s
            self._victims.set_link(number, is_up=False)
        else:
            for pid in pids:
                _send(pid, signal.SIGKILL)
        for pid in pids:
            self._seen.pop(pid, None)
        return pids

    def _strike_worker(self, strike: Strike) -> tuple[int, ...]:
        present = self._present()
        victim = choose_worker(strike, present, self._holders())
        if victim is None:
            return ()
        match strike.mishap:
            case Mishap.STOP:
                self._away[victim] = time.monotonic() + self._away_s
            case Mishap.HANG | Mishap.CUT:
                self._seen[victim] = self._step  # it comes again
            case Mishap.JOIN:
                self._leaving.add(victim)
            case _:
                del self._seen[victim]
        _send(victim, _SIGNALS[strike.mishap])
        if strike.mishap is Mishap.JOIN:
            self._victims.start_another(next(number for number, host in enumerate(present) if victim in host))
        return (victim,)

    def _present(self) -> list[list[int]]:
        """Return the workers of each host that nothing has happened to."""
        struck = self._leaving.union(self._away)
        return [[pid for pid in host if pid in self._seen and pid not in struck] for host in self._hosts]

    def _holders(self) -> list[int]:
        """Return those of them that have been there for some steps, so that they have the state."""
        return [pid for host in self._present() for pid in host if self._step > self._seen[pid] + 1]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
