"""What ``phalanx bench step`` measures, and what its figures mean: decided here, done in ``bench_step_worker``."""

import statistics
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from phalanx.errors import ConfigError
from phalanx.train.config import ModelConfig


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


def parse_step_systems(text: str) -> list[StepSystem]:
    """Read names with commas between them."""
    known = {system.value: system for system in StepSystem}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is no system: choose from {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{text} names a system twice: each is measured once")
    return [known[name] for name in names]


def make_config(width: int) -> ModelConfig:
    """A transformer of six blocks, with heads of 64; 384 wide it has about 11 M parameters."""
    if width < 64 or width % 64:
        raise ConfigError(f"the model's width is a multiple of 64, not {width}")
    return ModelConfig(layers=6, width=width, heads=width // 64, kv_heads=width // 64, hidden=width * 8 // 3)


def rows(seconds: Mapping[StepSystem, Sequence[float]], ranks: int, parameters: int) -> list[Row]:
    """One row for each system; ``seconds`` has those of the slowest rank, step by step."""
    medians = {system: statistics.median(each) for system, each in seconds.items()}
    base = medians.get(StepSystem.NO_EXCHANGE)
    return [
        Row(system.value, ranks, parameters, median, None if base is None else median / base - 1)
        for system, median in medians.items()
    ]
