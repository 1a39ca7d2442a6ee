"""Where the time of a step goes."""

import time
from collections.abc import Callable


class StepClock:
    """A clock that starts with the step; each phase ends the one before it.

    ``waited_s`` returns how long this rank has waited for others so far.
    """

    def __init__(self, waited_s: Callable[[], float]) -> None:
        self._read_waited_s = waited_s
        self._waited_s = 0.0
        self._began = time.perf_counter()
        self._computed = self._exchanged = self._committed = self._began

    def end_computing(self) -> None:
        """Lanes are computed; what follows is exchange."""
        self._waited_s = self._read_waited_s()  # waiting beside computing cost nothing
        self._computed = time.perf_counter()

    def end_exchange(self) -> None:
        """Everything is exchanged; what follows is waiting."""
        self._waited_s = self._read_waited_s() - self._waited_s
        self._exchanged = time.perf_counter()

    def end_waiting(self) -> None:
        """The step counts; what follows is computing."""
        self._committed = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Return the seconds of computing, of exchanging, and of waiting for others, the commit included."""
        blocked = self._exchanged - self._computed
        waited = min(self._waited_s, blocked)
        computing = self._computed - self._began + time.perf_counter() - self._committed
        return computing, blocked - waited, waited + self._committed - self._exchanged
