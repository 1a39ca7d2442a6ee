"""What a coordinator insists on."""

import re
from dataclasses import dataclass

from phalanx.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How many workers a run has, and how long one may be silent.

    ``minimum`` and ``maximum`` may be None: then the first worker says how many there will be. ``patience_s`` is the
    one knob of all waiting: who is silent for so long is given up, everybody says something five times as often, and a
    run that lost too many waits twelve times as long for others to come.
    """

    minimum: int | None = None
    maximum: int | None = None
    job: str = ""
    patience_s: float = 5.0

    def __post_init__(self) -> None:
        sizes = self.minimum, self.maximum
        if sizes != (None, None) and not 1 <= (self.minimum or 0) <= (self.maximum or 0):
            raise ConfigError("of MIN:MAX workers, MIN is at least 1 and MAX at least MIN, not {}:{}".format(*sizes))
        if not 0.1 <= self.patience_s <= 3600:
            raise ConfigError(f"patience is from 0.1 to 3600 seconds, not {self.patience_s:g}")

    @classmethod
    def exactly(cls, size: int | None, job: str = "") -> "Terms":
        """Terms for ``size`` workers, or for as many as the first one says."""
        return cls(minimum=size, maximum=size, job=job)

    @property
    def interval_s(self) -> float:
        """How often everybody says something."""
        return self.patience_s / 5

    @property
    def rejoin_s(self) -> float:
        """How long a run with too few workers waits for others."""
        return self.patience_s * 12


def parse_workers(text: str) -> tuple[int, int]:
    """Read ``4`` or ``2:8`` as the least and the most workers."""
    if not re.fullmatch(r"\d{1,5}(:\d{1,5})?", text, re.ASCII):
        raise ConfigError(f"the number of workers is N or MIN:MAX, as in 4 or 2:8, not {text!r}")
    least, _, most = text.partition(":")
    return int(least), int(most or least)
