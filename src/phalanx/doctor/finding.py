"""What a check comes to."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How much a finding matters."""

    GOOD = "good"
    WARNING = "warning"
    """Training works, but slower or less safely than it could."""
    PROBLEM = "problem"
    """Training fails, gives other bits on some machines, or is much slower."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What was found about something, and what to do about it; a good finding needs no ``advice``."""

    level: Level
    about: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.found}: {self.advice}" if self.advice else self.found


def good(about: str, found: str) -> CheckFinding:
    """Return a finding that all is well."""
    return CheckFinding(Level.GOOD, about, found)


def warning(about: str, found: str, advice: str) -> CheckFinding:
    """Return a finding that is worth a look."""
    return CheckFinding(Level.WARNING, about, found, advice)


def problem(about: str, found: str, advice: str) -> CheckFinding:
    """Return a finding that must be dealt with."""
    return CheckFinding(Level.PROBLEM, about, found, advice)
