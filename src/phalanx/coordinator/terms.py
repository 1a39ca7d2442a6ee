"""The terms of a run: how many workers it has, and how long they wait for each other."""

import re
from dataclasses import dataclass, replace

from phalanx.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How many workers a run has, and when one of them is given up.

    ``minimum`` and ``maximum`` may be None: then the first worker says how many there will be. A worker whose machine
    or network has been gone for ``patience_s`` is lost. A worker that does nothing for ``stall_s`` while another one
    waits for it is given up. A run that has lost too many workers waits twelve times ``patience_s`` for others to come.
    For so long, its first epoch also waits for ``first`` workers, which is ``minimum`` if it is None.
    """

    minimum: int | None = None
    maximum: int | None = None
    first: int | None = None
    job: str = ""
    patience_s: float = 5.0
    stall_s: float = 30.0

    def __post_init__(self) -> None:
        sizes = self.minimum, self.maximum
        if sizes != (None, None) and not 1 <= (self.minimum or 0) <= (self.maximum or 0):
            raise ConfigError(
                "in MIN:MAX workers, MIN must be at least 1 and MAX at least MIN, not {}:{}".format(*sizes)
            )
        if self.first is not None and not (self.minimum or 1) <= self.first <= (self.maximum or self.first):
            raise ConfigError(
                f"the first {self.first} workers to wait for are not within {self.minimum} to {self.maximum}"
            )
        check_times(self.patience_s, self.stall_s)

    @classmethod
    def exactly(
        cls, size: int | None, job: str = "", *, patience_s: float | None = None, stall_s: float | None = None
    ) -> "Terms":
        """Return terms for ``size`` workers, or for as many as the first worker says. None means the default time."""
        terms = cls(minimum=size, maximum=size, job=job)
        return replace(
            terms,
            patience_s=terms.patience_s if patience_s is None else patience_s,
            stall_s=terms.stall_s if stall_s is None else stall_s,
        )

    @property
    def longest_nap_s(self) -> float:
        """The longest pause between two attempts of a worker to reach the coordinator."""
        return self.patience_s / 5

    @property
    def rejoin_s(self) -> float:
        """How long a run with too few workers waits for others."""
        return self.patience_s * 12


def check_times(patience_s: float | None, stall_s: float | None) -> None:
    """Raise ConfigError if the patience or the stall time is too short or too long. None means the default."""
    if patience_s is not None and not 0.1 <= patience_s <= 3600:
        raise ConfigError(f"--patience and PHALANX_PATIENCE are from 0.1 to 3600 seconds, not {patience_s:g}")
    if stall_s is not None and not 0.1 <= stall_s <= 1_000_000:
        raise ConfigError(f"--stall and PHALANX_STALL are from 0.1 to 1000000 seconds, not {stall_s:g}")


def parse_workers(text: str) -> tuple[int, int]:
    """Read ``4`` or ``2:8`` as the smallest and the largest number of workers."""
    if not re.fullmatch(r"\d{1,5}(:\d{1,5})?", text, re.ASCII):
        raise ConfigError(f"the number of workers is N or MIN:MAX, as in 4 or 2:8, not {text!r}")
    least, _, most = text.partition(":")
    return int(least), int(most or least)
