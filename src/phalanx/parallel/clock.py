"""Where the time of a step goes."""

import time

from phalanx.parallel.exchange import Exchange


class Clock:
    """Begins with the step; each phase ends the one before it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._waited_s = 0.0
        self._began = time.perf_counter()
        self._computed = self._exchanged = self._committed = self._began

    def end_computing(self) -> None:
        """Lanes are computed; what follows is exchange."""
        self._waited_s = self._exchange.waited_s()  # what was waited for beside computing cost nothing
        self._computed = time.perf_counter()

    def end_exchange(self) -> None:
        """Everything is exchanged; what follows is waiting."""
        self._waited_s = self._exchange.waited_s() - self._waited_s
        self._exchanged = time.perf_counter()

    def end_waiting(self) -> None:
        """The step counts; what follows is computing."""
        self._committed = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Seconds of computing, of exchanging, and of waiting for others, which includes that the step counts."""
        blocked = self._exchanged - self._computed
        waited = min(self._waited_s, blocked)
        computing = self._computed - self._began + time.perf_counter() - self._committed
        return computing, blocked - waited, waited + self._committed - self._exchanged
