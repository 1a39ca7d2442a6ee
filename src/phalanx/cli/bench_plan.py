"""What is measured, in which order, and what the figures mean."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from phalanx.errors import ConfigError

_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_ITEM_BYTES = 4  # all systems add up f32


class System(Enum):
    """What can be measured."""

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
    """Phalanx, in place on an ordinary array, through a gradient server in a process that is no rank."""
    GLOO = "gloo"
    """torch.distributed over Gloo."""
    OPENMPI = "openmpi"
    """mpi4py over Open MPI."""


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker says when its system is connected."""

    rank: int


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker is told to measure."""

    bytes: int
    warmup: int
    iterations: int

    @property
    def length(self) -> int:
        """Elements of the buffer."""
        return self.bytes // _ITEM_BYTES


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker measured: the seconds of each iteration."""

    seconds: list[float]


class Row(msgspec.Struct, frozen=True):
    """One figure: how long an all-reduce of ``bytes`` takes in one system.

    Bandwidths are in GB/s. ``vs_gloo`` says how many times faster than Gloo it is, None where Gloo was not measured.
    """

    system: str
    ranks: int
    bytes: int
    median_s: float
    algbw_gbps: float
    busbw_gbps: float
    iterations: int
    vs_gloo: float | None


def parse_sizes(text: str) -> list[int]:
    """Read ``4KiB,64MiB`` as bytes."""
    return [_parse_size(word) for word in _words(text)]


def parse_ranks(text: str, least: int = 2) -> list[int]:
    """Read ``2,4`` as sizes of groups."""
    words = _words(text)
    for word in words:
        if not (word.isdecimal() and int(word) >= least):
            raise ConfigError(f"{word!r} ranks show nothing here: give {least} or more, as in --ranks 2,4")
    return [int(word) for word in words]


def parse_systems(text: str) -> list[System]:
    """Read ``arena,gloo`` as systems."""
    known = {system.value: system for system in System}
    words = _words(text)
    for word in words:
        if word not in known:
            raise ConfigError(f"there is no system {word!r}: choose from {', '.join(known)}")
    return [known[word] for word in words]


def schedule(systems: Sequence[System], sizes: Sequence[int], rounds: int) -> Iterator[tuple[int, Task, System]]:
    """Who measures what in which round.

    Systems take turns within every size of every round, so that a busy minute of the machine hits all of them, and
    another one begins each round, so that none always follows the same one.
    """
    for number in range(rounds):
        first = number % len(systems)
        for size in sizes:
            for system in [*systems[first:], *systems[:first]]:
                yield number, task(size), system


def task(size_bytes: int) -> Task:
    """As many iterations of a size as one round needs: many of the short, few of the long."""
    iterations = max(5, min(200, 2**28 // size_bytes))
    return Task(size_bytes, warmup=max(2, iterations // 10), iterations=iterations)


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """How long each iteration took: until the last rank had the result."""
    return [max(seconds) for seconds in zip(*by_rank, strict=True)]


def rows(ranks: int, seconds: Mapping[tuple[int, System], Sequence[float]]) -> list[Row]:
    """The figures, by size and in the order of ``seconds``, which has those of every iteration."""
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    return [
        _row(ranks, size, system, medians[size, system], len(seconds[size, system]), medians.get((size, System.GLOO)))
        for size, system in sorted(seconds, key=lambda key: key[0])
    ]


def baseline(table: Sequence[Row]) -> str:
    """With what a table compares: Gloo where it was measured, else the slowest of each size."""
    return "gloo" if all(row.vs_gloo is not None for row in table) else "slowest"


def cells(row: Row, table: Sequence[Row]) -> tuple[str, ...]:
    """A line of the table for people: size, system, time, algorithm and bus bandwidth, ratio to the baseline."""
    ratio = row.vs_gloo
    if ratio is None:
        ratio = max(other.median_s for other in table if other.bytes == row.bytes) / row.median_s
    return (
        format_size(row.bytes),
        row.system,
        format_time(row.median_s),
        _short(row.algbw_gbps),
        _short(row.busbw_gbps),
        f"{_short(ratio)}x",
    )


def format_size(size_bytes: int) -> str:
    """``64 MiB``, in the largest unit that leaves no fraction."""
    unit = next(unit for unit, factor in _UNITS.items() if size_bytes % factor == 0)
    return f"{size_bytes // _UNITS[unit]} {unit}"


def format_time(seconds: float) -> str:
    """``12.3 µs``, ``4.56 ms`` or ``1.23 s``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{_short(seconds * factor)} {unit}"
    return f"{_short(seconds * 1e6)} µs"


def _row(ranks: int, size: int, system: System, median_s: float, iterations: int, gloo_s: float | None) -> Row:
    bandwidth = size / median_s / 1e9
    return Row(
        system=system.value,
        ranks=ranks,
        bytes=size,
        median_s=median_s,
        algbw_gbps=bandwidth,
        busbw_gbps=bandwidth * 2 * (ranks - 1) / ranks,
        iterations=iterations,
        vs_gloo=None if gloo_s is None else gloo_s / median_s,
    )


def _words(text: str) -> list[str]:
    """The different words of a list with commas."""
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    if "" in words:
        raise ConfigError(f"{text!r} has an empty place: write the words with one comma between them")
    return words


def _parse_size(word: str) -> int:
    number = word.rstrip("BKMGi")
    factor = _UNITS.get(word[len(number) :] or "B")
    if factor is None or not number.isdecimal():
        raise ConfigError(f"{word!r} is no size: write a number and B, KiB, MiB or GiB, as in 4KiB")
    size = int(number) * factor
    if size == 0 or size % _ITEM_BYTES:
        raise ConfigError(f"{word!r} holds no whole number of f32: give a multiple of {_ITEM_BYTES} bytes")
    return size


def _short(value: float) -> str:
    """Three digits that count."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
