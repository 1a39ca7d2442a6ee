"""What ``phalanx bench zero`` measures, and its figures. Workers run ``zero_worker``, then ``zero_memory``."""

import statistics
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from phalanx.bench.text import format_time
from phalanx.bench.training.driver import Training, Turns, drive

HEADINGS = ("system", "median time", "vs torch-zero", "state per rank", "peak per rank")
PEAK = (
    "peak: how far resident memory grew beyond what it was before the model was made (VmHWM less VmRSS then), "
    "in processes of the system's own; memory that ranks share counts on each that has touched it"
)


class ZeroSystem(Enum):
    """A way to keep the state of an optimizer on several ranks."""

    ZERO = "zero"
    """``phalanx.parallel.ZeroOptimizer`` over ``DataParallel``."""
    FULL = "full"
    """The full state on every rank: torch's AdamW over ``DataParallel``."""
    TORCH_ZERO = "torch-zero"
    """torch's ZeroRedundancyOptimizer and DistributedDataParallel over Gloo."""


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory of the rank that needs most: the optimizer's state, and the peak of everything."""

    state_bytes: int
    peak_bytes: int


class ZeroRow(msgspec.Struct, frozen=True):
    """The figures of one system: the median step, and the memory of the rank that needs most."""

    system: str
    ranks: int
    parameters: int
    median_s: float
    state_bytes: int
    peak_bytes: int


def measure_optimizers(training: Training) -> list[ZeroRow]:
    """Time all systems in turn, measure the memory of each one alone, and return a row for each system."""
    turns = drive("phalanx.bench.training.zero_worker", training, training.ranks, Turns)
    memory = {name: _measure_memory(name, training) for name in training.systems}
    return rows(turns, memory, training.ranks)


def rows(turns: Turns, memory: Mapping[str, Memory], ranks: int) -> list[ZeroRow]:
    """Return a row for each system."""
    return [
        ZeroRow(
            system=system,
            ranks=ranks,
            parameters=turns.parameters,
            median_s=statistics.median(seconds),
            state_bytes=memory[system].state_bytes,
            peak_bytes=memory[system].peak_bytes,
        )
        for system, seconds in turns.seconds.items()
    ]


def cells(row: ZeroRow, table: Sequence[ZeroRow]) -> tuple[str, ...]:
    """Return a line of the table: system, time, how many times as fast as torch-zero, state, peak."""
    base = next((other.median_s for other in table if other.system == ZeroSystem.TORCH_ZERO.value), None)
    return (
        row.system,
        format_time(row.median_s),
        "" if base is None else f"{base / row.median_s:.2f}x",
        f"{row.state_bytes / 2**20:.1f} MiB",
        f"{row.peak_bytes / 2**20:.1f} MiB",
    )


def _measure_memory(system: str, training: Training) -> Memory:
    alone = msgspec.structs.replace(training, systems=(system,))
    return drive("phalanx.bench.training.zero_memory", alone, training.ranks, Memory)
