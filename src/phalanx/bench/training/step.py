"""What ``phalanx bench step`` measures, and its figures. The workers run ``step_worker``."""

import statistics
from enum import Enum

import msgspec

from phalanx.bench.text import format_time
from phalanx.bench.training.driver import Training, Turns, drive

HEADINGS = ("system", "median time", "overhead")


class StepSystem(Enum):
    """A way to take a training step on several ranks."""

    ENGINE = "engine"
    """``phalanx.parallel.Engine``, with one lane for each worker."""
    DATA_PARALLEL = "data-parallel"
    """``phalanx.parallel.DataParallel``."""
    DDP_GLOO = "ddp-gloo"
    """torch's DistributedDataParallel over Gloo."""
    NO_EXCHANGE = "no-exchange"
    """The same processes without any exchange."""


class StepRow(msgspec.Struct, frozen=True):
    """The figures of one system: the median step, and its overhead over no exchange, if that was measured."""

    system: str
    ranks: int
    parameters: int
    median_s: float
    overhead: float | None


def measure_steps(training: Training) -> list[StepRow]:
    """Start workers, have them take steps in every system in turn, and return a row for each system."""
    return rows(drive("phalanx.bench.training.step_worker", training, training.ranks, Turns), training.ranks)


def rows(turns: Turns, ranks: int) -> list[StepRow]:
    """Return a row for each system."""
    medians = {system: statistics.median(each) for system, each in turns.seconds.items()}
    base = medians.get(StepSystem.NO_EXCHANGE.value)
    return [
        StepRow(system, ranks, turns.parameters, median, None if base is None else median / base - 1)
        for system, median in medians.items()
    ]


def cells(row: StepRow) -> tuple[str, ...]:
    """Return a line of the table for people: system, time, overhead."""
    return row.system, format_time(row.median_s), "" if row.overhead is None else f"{row.overhead:+.1%}"
