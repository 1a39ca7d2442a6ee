"""A clock that moves when told."""

from phalanx.errors import ConfigError


class ManualClock:
    """Stands still until ``advance``: give it to ``Deadline.after(seconds, clock)``."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time that it shows."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass at once."""
        if seconds < 0:
            raise ConfigError(f"a clock never goes back: advance it by 0 or more seconds, not {seconds}")
        self._now += seconds
