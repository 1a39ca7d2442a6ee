"""Carries out failures on purpose, while a run is going on."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, Self

from phalanx.launch.chaos import Mishap, Strike, choose
from phalanx.launch.mishaps import CUT_SIGNAL, HANG_SIGNAL

_LOOK_S = 0.005
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
    """The workers of a run."""

    @property
    def joined(self) -> list[int]:
        """The processes of those that have joined."""

    def start_another(self) -> None:
        """Start one more."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A mishap that happened, at a time in seconds since 1970, to these processes, after ``step`` steps."""

    time: float
    mishap: Mishap
    step: int
    pids: tuple[int, ...]


@dataclass(slots=True)
class Weather:
    """The strikes that are still to come, and those that have happened."""

    strikes: list[Strike]
    struck: list[Struck] = field(default_factory=list)


class Storm:
    """Does the strikes of ``weather`` during the block, each when its step is reached and it leaves the run its state.

    ``away_s`` is how long a worker that is stopped stays so. ``coordinator`` returns the coordinator's process. If the
    optimizer is shared (``is_shared``), a strike waits until the one before was got over: each part of the state has
    two holders only.
    """

    def __init__(
        self,
        weather: Weather,
        victims: Victims,
        coordinator: Callable[[], int],
        count_steps: Callable[[], int],
        *,
        away_s: float,
        is_shared: bool,
    ) -> None:
        self._weather = weather
        self._victims = victims
        self._coordinator = coordinator
        self._count_steps = count_steps
        self._away_s = away_s
        self._is_shared = is_shared
        self._seen: dict[int, int] = {}  # at which step each worker was first seen among the others
        self._away: dict[int, float] = {}  # workers that are stopped, and until when
        self._step = self._last_step = 0
        self._step_s, self._step_at = _FIRST_STEP_S, time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._rage, name="phalanx-storm")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for pid in self._away:
            _send(pid, signal.SIGCONT)

    def _rage(self) -> None:
        due_at: float | None = None
        strikes = self._weather.strikes
        while strikes and not self._is_over.wait(_LOOK_S):
            self._look()
            strike = strikes[0]
            if self._step < strike.step:
                continue
            if due_at is None:
                due_at = time.monotonic() + strike.moment * self._step_s
            if time.monotonic() >= due_at and self._do(strike):
                self._last_step = self._step
                strikes.pop(0)
                due_at = None
        while self._away and not self._is_over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        now, step = time.monotonic(), self._count_steps()
        if step > self._step:
            self._step_s, self._step_at = 0.5 * self._step_s + 0.5 * (now - self._step_at) / (step - self._step), now
        self._step = step
        for pid, until in list(self._away.items()):
            if now >= until:
                _send(pid, signal.SIGCONT)
                del self._away[pid]
                self._seen[pid] = step
        joined = self._victims.joined
        self._seen = {pid: self._seen.get(pid, step) for pid in joined}

    def _do(self, strike: Strike) -> bool:
        """Do a strike, and return whether that was possible now."""
        at = time.time()
        if strike.mishap is Mishap.COORDINATOR:
            pids: tuple[int, ...] = (self._coordinator(),)
            _send(pids[0], signal.SIGKILL)
        elif strike.mishap is Mishap.HOST:
            pids = tuple(self._seen)
            for pid in pids:
                _send(pid, signal.SIGKILL)
        else:
            present = [pid for pid in self._seen if pid not in self._away]
            holders = [pid for pid in present if self._step > self._seen[pid] + 1]
            if not present or (self._is_shared and self._step <= self._last_step + 1):
                return False
            victim = choose(strike, present)
            if not set(holders) - {victim}:
                return False
            if strike.mishap is Mishap.STOP:
                self._away[victim] = time.monotonic() + self._away_s
            if strike.mishap in (Mishap.STOP, Mishap.HANG, Mishap.CUT):
                self._seen[victim] = self._step + 10**9 if strike.mishap is Mishap.STOP else self._step
            else:
                del self._seen[victim]
            pids = (victim,)
            _send(victim, _SIGNALS[strike.mishap])
            if strike.mishap is Mishap.JOIN:
                self._victims.start_another()
        self._weather.struck.append(Struck(at, strike.mishap, self._step, pids))
        return True


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
