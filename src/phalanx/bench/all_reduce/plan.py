"""Which all-reduces are measured, in which order, and the figures computed from the times."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from phalanx.bench.text import ITEM_BYTES, format_number, format_size, format_time


class AllReduceSystem(Enum):
    """A way to do an all-reduce."""

    ARENA = "arena"
    """Phalanx, with buffers from ``allocate``."""
    INPLACE = "inplace"
    """Phalanx, in place on a buffer from ``allocate``."""
    COPY = "copy"
    """Phalanx, in place on an ordinary array that is copied through the arena."""
    TCP = "tcp"
    """Phalanx, in place on an ordinary array, over TCP."""
    STAR = "star"
    """Phalanx, in place on an ordinary array, over TCP and through rank 0."""
    STAR_APART = "star-apart"
    """The same with one rank more, so that rank 0 carries as many bytes as a gradient server."""
    GRADIENT_SERVER = "gradient-server"
    """Phalanx, in place on an ordinary array, through a gradient server in a process that is not a rank."""
    GLOO = "gloo"
    """torch.distributed over Gloo."""
    OPENMPI = "openmpi"
    """mpi4py over Open MPI."""


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sent by a worker when its system is connected."""

    rank: int


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tells a worker what to measure."""

    bytes: int
    warmup: int
    iterations: int

    @property
    def length(self) -> int:
        """The number of elements in the buffer."""
        return self.bytes // ITEM_BYTES


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sent by a worker: the seconds of each iteration."""

    seconds: list[float]


class AllReduceRow(msgspec.Struct, frozen=True):
    """The figures of one system at one size.

    Bandwidths are in GB/s. ``vs_gloo`` is how many times as fast as Gloo it is, or None if Gloo was not measured.
    """

    system: str
    ranks: int
    bytes: int
    median_s: float
    algbw_gbps: float
    busbw_gbps: float
    iterations: int
    vs_gloo: float | None


def schedule(
    systems: Sequence[AllReduceSystem], sizes: Sequence[int], rounds: int
) -> Iterator[tuple[int, Task, AllReduceSystem]]:
    """Yield the measurements in order: the round, the task and the system.

    Systems take turns within every size of every round, so that a busy minute of the machine slows all of them. Each
    round starts with another system, so that no system always runs after the same one.
    """
    for number in range(rounds):
        first = number % len(systems)
        for size in sizes:
            for system in [*systems[first:], *systems[:first]]:
                yield number, task(size), system


def task(size_bytes: int) -> Task:
    """Return the task for one round at this size: many iterations of short buffers, few of long ones."""
    iterations = max(5, min(200, 2**28 // size_bytes))
    return Task(size_bytes, warmup=max(2, iterations // 10), iterations=iterations)


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return how long each iteration took, until the last rank had the result."""
    return [max(seconds) for seconds in zip(*by_rank, strict=True)]


def rows(ranks: int, seconds: Mapping[tuple[int, AllReduceSystem], Sequence[float]]) -> list[AllReduceRow]:
    """Return the figures by size, in the order of ``seconds``, which has the time of every iteration."""
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    return [
        _row(
            ranks,
            size,
            system,
            medians[size, system],
            len(seconds[size, system]),
            medians.get((size, AllReduceSystem.GLOO)),
        )
        for size, system in sorted(seconds, key=lambda key: key[0])
    ]


def baseline(table: Sequence[AllReduceRow]) -> str:
    """Return what a table compares with: Gloo if it was measured, otherwise the slowest system of each size."""
    return "gloo" if all(row.vs_gloo is not None for row in table) else "slowest"


def cells(row: AllReduceRow, table: Sequence[AllReduceRow]) -> tuple[str, ...]:
    """Return a line of the table: size, system, time, algorithm and bus bandwidth, ratio to the baseline."""
    ratio = row.vs_gloo
    if ratio is None:
        ratio = max(other.median_s for other in table if other.bytes == row.bytes) / row.median_s
    return (
        format_size(row.bytes),
        row.system,
        format_time(row.median_s),
        format_number(row.algbw_gbps),
        format_number(row.busbw_gbps),
        f"{format_number(ratio)}x",
    )


def _row(
    ranks: int, size: int, system: AllReduceSystem, median_s: float, iterations: int, gloo_s: float | None
) -> AllReduceRow:
    bandwidth = size / median_s / 1e9
    return AllReduceRow(
        system=system.value,
        ranks=ranks,
        bytes=size,
        median_s=median_s,
        algbw_gbps=bandwidth,
        busbw_gbps=bandwidth * 2 * (ranks - 1) / ranks,
        iterations=iterations,
        vs_gloo=None if gloo_s is None else gloo_s / median_s,
    )
