"""Failures on purpose: which, when, and of whom. Deciding only; ``storm`` carries them out."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from phalanx.errors import ConfigError

_MOST = 100_000


class Mishap(Enum):
    """What can happen to a run."""

    KILL = "kill"
    STOP = "stop"
    SEGFAULT = "segfault"
    CUT = "cut"
    HANG = "hang"
    HOST = "host"
    JOIN = "join"
    COORDINATOR = "coordinator"


DESCRIPTIONS = {
    Mishap.KILL: "a worker is killed",
    Mishap.STOP: "a worker is stopped, given up and continued",
    Mishap.SEGFAULT: "a worker crashes",
    Mishap.CUT: "all connections of a worker break",
    Mishap.HANG: "a worker hangs in the middle of a step, and continues later",
    Mishap.HOST: "all workers of this machine are killed at once",
    Mishap.JOIN: "a worker leaves, and another one joins",
    Mishap.COORDINATOR: "the coordinator is killed and started again",
}


@dataclass(frozen=True, slots=True)
class Strike:
    """A mishap after ``step`` steps, at a ``moment`` of the next one: 0 is its start, 1 about its end."""

    step: int
    moment: float
    mishap: Mishap
    choice: float
    """Which of those that it can happen to: 0 is the first, and just below 1 the last."""


def parse_chaos(text: str) -> dict[Mishap, int]:
    """Read ``kill=20,stop=5`` as how often each mishap happens."""
    counts: dict[Mishap, int] = {}
    kinds = {each.value: each for each in Mishap}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in kinds:
            raise ConfigError(f"there is no mishap {name!r} in --chaos {text!r}: name some of {', '.join(kinds)}")
        if not re.fullmatch(r"\d{1,6}", number, re.ASCII) or int(number) > _MOST:
            raise ConfigError(
                f"--chaos says how often each mishap happens, as in kill=20,stop=5, with numbers up to {_MOST:,}, "
                f"not {part.strip()!r}"
            )
        if kinds[name] in counts:
            raise ConfigError(f"--chaos {text!r} names {name} twice: add the numbers up")
        counts[kinds[name]] = int(number)
    return counts


def plan_strikes(counts: Mapping[Mishap, int], steps: int, seed: int) -> list[Strike]:
    """Return all mishaps in order, at random moments of random steps, the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    strikes = [
        Strike(draw.randrange(1, max(2, steps - 1)), draw.random(), mishap, draw.random())
        for mishap, count in sorted(counts.items(), key=lambda each: each[0].value)
        for _ in range(count)
    ]
    return sorted(strikes, key=lambda each: (each.step, each.moment))


def choose(strike: Strike, workers: Sequence[int]) -> int:
    """Return which of these workers a strike hits."""
    return sorted(workers)[int(strike.choice * len(workers))]
