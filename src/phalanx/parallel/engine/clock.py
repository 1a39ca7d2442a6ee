"""Measuring how the time of a step is spent."""

import time
from collections.abc import Callable


class StepClock:
    """A clock that starts with the step and measures its phases.

    ``waited_s`` returns how long this rank has waited for others so far.
    """

    def __init__(self, waited_s: Callable[[], float]) -> None:
        self._read_waited_s = waited_s
        self._waited_s = 0.0
        self._began = time.perf_counter()
        self._computed = self._exchanged = self._committed = self._began

    def end_computing(self) -> None:
        """End computing lanes, and start exchanging."""
        self._waited_s = self._read_waited_s()  # waiting while lanes were computed cost nothing
        self._computed = time.perf_counter()

    def end_exchange(self) -> None:
        """End exchanging, and start waiting for the commit."""
        self._waited_s = self._read_waited_s() - self._waited_s
        self._exchanged = time.perf_counter()

    def end_waiting(self) -> None:
        """End waiting for the commit, and start updating."""
        self._committed = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Return the seconds of computing, of exchanging, and of waiting for other ranks and the commit."""
        blocked = self._exchanged - self._computed
        waited = min(self._waited_s, blocked)
        computing = self._computed - self._began + time.perf_counter() - self._committed
        return computing, blocked - waited, waited + self._committed - self._exchanged
