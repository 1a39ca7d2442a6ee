"""Measuring how the time of a step is spent."""

import time
from collections.abc import Callable

from phalanx.telemetry import OFF, Activity, Recorder


class StepClock:
    """A clock that starts with the step, and measures and records its phases.

    ``waited_s`` returns how long this rank has waited for others so far.
    """

    def __init__(self, waited_s: Callable[[], float], recorder: Recorder = OFF) -> None:
        self._read_waited_s = waited_s
        self._recorder = recorder
        self._waited_s = 0.0
        self._began = time.monotonic_ns()
        self._computed = self._exchanged = self._committed = self._began

    @property
    def passed_s(self) -> float:
        """The seconds since the step began."""
        return (time.monotonic_ns() - self._began) / 1e9

    def end_computing(self) -> None:
        """End computing lanes, and start exchanging."""
        self._waited_s = self._read_waited_s()  # waiting while lanes were computed cost nothing
        self._computed = time.monotonic_ns()

    def end_exchange(self) -> None:
        """End exchanging, and start waiting for the commit."""
        self._waited_s = self._read_waited_s() - self._waited_s
        self._recorder.record(Activity.EXPOSED, self._computed)
        self._exchanged = time.monotonic_ns()

    def end_waiting(self) -> None:
        """End waiting for the commit, and start updating."""
        self._recorder.record(Activity.COMMIT, self._exchanged)
        self._committed = time.monotonic_ns()

    def end_update(self) -> None:
        """End updating, and with it the step, unless weights have to come from other ranks."""
        self._recorder.record(Activity.OPTIMIZER, self._committed)
        self._recorder.record(Activity.STEP, self._began)

    def read(self) -> tuple[float, float, float]:
        """Return the seconds of computing, of exchanging, and of waiting for other ranks and the commit."""
        blocked = (self._exchanged - self._computed) / 1e9
        waited = min(self._waited_s, blocked)
        computing = (self._computed - self._began + time.monotonic_ns() - self._committed) / 1e9
        return computing, blocked - waited, waited + (self._committed - self._exchanged) / 1e9
