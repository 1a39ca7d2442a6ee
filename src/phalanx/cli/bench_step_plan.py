"""What ``phalanx bench step`` measures, and what its figures mean: decided here, done in ``bench_step_worker``."""

import statistics
from enum import Enum

import msgspec

from phalanx.cli.bench_training import Turns


class StepSystem(Enum):
    """A way to take a training step on several ranks."""

    ENGINE = "engine"
    """Exact lanes, one for each worker."""
    DATA_PARALLEL = "data-parallel"
    """``phalanx.parallel.DataParallel``."""
    DDP_GLOO = "ddp-gloo"
    """torch's DistributedDataParallel over Gloo."""
    NO_EXCHANGE = "no-exchange"
    """The same processes, each for itself."""


class Row(msgspec.Struct, frozen=True):
    """The figures of one system: the median step, and what it costs over one without exchange, if that was measured."""

    system: str
    ranks: int
    parameters: int
    median_s: float
    overhead: float | None


def rows(turns: Turns, ranks: int) -> list[Row]:
    """One row for each system."""
    medians = {system: statistics.median(each) for system, each in turns.seconds.items()}
    base = medians.get(StepSystem.NO_EXCHANGE.value)
    return [
        Row(system, ranks, turns.parameters, median, None if base is None else median / base - 1)
        for system, median in medians.items()
    ]
