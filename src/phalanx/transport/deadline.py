"""The one way to limit a wait."""

import time
from collections.abc import Callable
from typing import NamedTuple

from phalanx.errors import ConfigError


class Deadline(NamedTuple):
    """A moment after which nobody waits any longer: made once at the API, then handed down."""

    at: float
    seconds: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """The moment ``seconds`` from now."""
        if not seconds > 0:
            raise ConfigError(f"a deadline must be in the future: give more than 0 seconds, not {seconds}")
        return cls(clock() + seconds, seconds, clock)

    @property
    def has_passed(self) -> bool:
        """Whether it is too late."""
        return self.clock() >= self.at

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self.clock())
