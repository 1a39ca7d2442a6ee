"""Failures on purpose: which, when, and of whom. Deciding only; ``storm`` carries them out."""

import random
import re
from collections.abc import Collection, Mapping, Sequence
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
    PARTITION = "partition"


DESCRIPTIONS = {
    Mishap.KILL: "a worker is killed",
    Mishap.STOP: "a worker is stopped, given up and continued",
    Mishap.SEGFAULT: "a worker crashes",
    Mishap.CUT: "all connections of a worker break",
    Mishap.HANG: "a worker hangs in the middle of a step, and continues later",
    Mishap.HOST: "all workers of this machine, or of one host, are killed at once",
    Mishap.JOIN: "a worker leaves, and another one joins",
    Mishap.COORDINATOR: "the coordinator is killed and started again",
    Mishap.PARTITION: "the network of one host is cut, and mended later",
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


def choose_worker(strike: Strike, hosts: Sequence[Collection[int]], holders: Collection[int]) -> int | None:
    """Return which of the workers of these hosts a strike hits; None if it would leave the state with nobody.

    ``holders`` are workers that surely have the state. A worker leaves only a host that another one can join: any but
    the first, if there are several.
    """
    is_open = strike.mishap is Mishap.JOIN and len(hosts) > 1
    workers = sorted(worker for host in hosts[is_open:] for worker in host)
    victim = workers[int(strike.choice * len(workers))] if workers else None
    return victim if set(holders) - {victim} else None


def choose_host(strike: Strike, hosts: Sequence[Collection[int]], holders: Collection[int]) -> int | None:
    """Return the number of the host that a strike hits; None if it would leave the state with nobody.

    Of several hosts, only one with workers is hit. One that is cut off is not the first, which has the coordinator. If
    there is one host only, it is hit in any case.
    """
    if len(hosts) == 1:
        return 0
    first = 1 if strike.mishap is Mishap.PARTITION else 0
    found = [number for number, host in enumerate(hosts) if number >= first and host and set(holders) - set(host)]
    return found[int(strike.choice * len(found))] if found else None
