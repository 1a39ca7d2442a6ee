"""The one way to limit a wait."""

import time
from collections.abc import Callable
from typing import NamedTuple

from phalanx.errors import ConfigError

_LONGEST_S = 1_000_000  # eleven days; the system's own calls count milliseconds in 31 bits


class Deadline(NamedTuple):
    """A moment after which nobody waits any longer: made once at the API, then handed down."""

    at: float
    seconds: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """Return the moment ``seconds`` from now."""
        if not 0 < seconds <= _LONGEST_S:
            raise ConfigError(f"every wait ends: give more than 0 seconds and at most {_LONGEST_S}, not {seconds}")
        return cls(clock() + seconds, seconds, clock)

    @property
    def has_passed(self) -> bool:
        """Whether it is too late."""
        return self.clock() >= self.at

    def remaining_s(self) -> float:
        """Return the seconds that are left, never fewer than 0."""
        return max(0.0, self.at - self.clock())
