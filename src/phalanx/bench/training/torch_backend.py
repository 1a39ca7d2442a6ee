"""What ``phalanx bench torch`` measures, and its figures. The workers run ``torch_backend_worker``."""

import statistics
from collections.abc import Sequence

import msgspec

from phalanx.bench.text import format_size, format_time
from phalanx.bench.training.driver import drive

HEADINGS = ("what", "size", "system", "median time", "vs gloo")
BACKENDS = ("phalanx", "gloo")


class BackendTask(msgspec.Struct, frozen=True, kw_only=True):
    """Tells workers to measure ``rounds`` all-reduces of each size, and then training steps, on both backends."""

    ranks: int
    rounds: int
    steps: int
    sizes: tuple[int, ...]
    width: int
    tokens: int


class BackendTimes(msgspec.Struct, frozen=True):
    """The workers' answer for one thing: the seconds of the slowest rank in every round, by backend."""

    what: str
    bytes: int
    seconds: dict[str, list[float]]


class BackendAnswer(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    times: list[BackendTimes]


class BackendRow(msgspec.Struct, frozen=True):
    """The median time of one thing on one backend; ``bytes`` is the length of the tensor, or of all parameters."""

    what: str
    system: str
    ranks: int
    bytes: int
    median_s: float


def measure_backends(task: BackendTask) -> list[BackendRow]:
    """Start workers, have both backends take turns, and return a row for each thing and backend."""
    answer = drive("phalanx.bench.training.torch_backend_worker", task, task.ranks, BackendAnswer)
    return [
        BackendRow(times.what, system, task.ranks, times.bytes, statistics.median(seconds))
        for times in answer.times
        for system, seconds in times.seconds.items()
    ]


def cells(row: BackendRow, rows: Sequence[BackendRow]) -> tuple[str, ...]:
    """Return a line of the table for people."""
    base = next(each for each in rows if (each.what, each.bytes, each.system) == (row.what, row.bytes, "gloo"))
    faster = f"{base.median_s / row.median_s:.2f}x"
    return row.what, format_size(row.bytes), row.system, format_time(row.median_s), faster
