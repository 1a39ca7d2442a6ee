"""What ``phalanx bench hosts`` measures, and what the figures mean."""

import re
import statistics
from enum import Enum

import msgspec

from phalanx.bench.text import format_time
from phalanx.errors import ConfigError

HEADINGS = ("system", "median time", "times the line", "vs gloo")
WIDTH = 512
LAYERS = 16
MODEL_BYTES = 4 * LAYERS * WIDTH * WIDTH  # 16 MiB of f32
BUFFER_BYTES = 64 << 20

_MOST_HOSTS = 64
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


class HostSystem(Enum):
    """What ``phalanx bench hosts`` can measure."""

    ENGINE = "engine"
    """A step of ``phalanx.parallel.Engine``, with one lane per rank."""
    DATA_PARALLEL = "data-parallel"
    """A step with ``phalanx.parallel.DataParallel``."""
    DATA_PARALLEL_BF16 = "data-parallel-bf16"
    """The same with ``wire="bf16"``."""
    DDP_GLOO = "ddp-gloo"
    """A step with torch's DistributedDataParallel over Gloo."""
    ALL_REDUCE = "all-reduce"
    """``group.all_reduce`` of an ordinary array of 64 MiB."""
    ALL_REDUCE_GLOO = "all-reduce-gloo"
    """torch's all-reduce of 64 MiB over Gloo."""

    @property
    def size_bytes(self) -> int:
        """How many bytes of f32 are reduced."""
        return BUFFER_BYTES if self in (HostSystem.ALL_REDUCE, HostSystem.ALL_REDUCE_GLOO) else MODEL_BYTES

    @property
    def gloo(self) -> "HostSystem":
        """The system of Gloo that does the same work."""
        return HostSystem.ALL_REDUCE_GLOO if self.size_bytes == BUFFER_BYTES else HostSystem.DDP_GLOO


class HostsTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each worker is told: ``ranks`` of them run on each host, whose network namespaces are these files."""

    systems: tuple[HostSystem, ...]
    namespaces: tuple[str, ...]
    ranks: int
    rounds: int


class HostsTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the workers answer: the seconds of the slowest rank in each system, round by round."""

    seconds: dict[HostSystem, list[float]]


class HostsRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one system. ``ranks`` counts those of one host.

    ``line_s`` is the time that the bytes need on the line of one host. ``vs_gloo`` says how many times as fast as Gloo
    the system is, and is None where Gloo was not measured.
    """

    system: str
    hosts: int
    ranks: int
    bytes: int
    median_s: float
    line_s: float
    vs_gloo: float | None


def parse_rate(text: str) -> int:
    """Read ``1gbit`` as bits per second."""
    found = re.fullmatch(r"([0-9]+)(kbit|mbit|gbit)", text)
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"{text!r} is no rate: write a whole number and kbit, mbit or gbit, as in --rate 1gbit")
    return int(found[1]) * _UNITS[found[2]]


def check_size(hosts: int, ranks: int) -> None:
    """Raise ConfigError unless so many hosts with so many ranks each can be measured."""
    if not 2 <= hosts <= _MOST_HOSTS:
        raise ConfigError(f"{hosts} hosts cannot be measured: give 2 to {_MOST_HOSTS}, as in --hosts 4")
    if ranks < 1:
        raise ConfigError(f"a host needs at least one rank, not {ranks}: give 1 or more, as in --ranks 2")


def line_seconds(size_bytes: int, hosts: int, rate_bits: int) -> float:
    """Return how long an all-reduce takes at least: each host sends and receives 2 (H - 1) / H of the bytes."""
    return 2 * (hosts - 1) / hosts * size_bytes * 8 / rate_bits


def rows(times: HostsTimes, hosts: int, ranks: int, rate_bits: int) -> list[HostsRow]:
    """Return one row for each system."""
    medians = {system: statistics.median(each) for system, each in times.seconds.items()}
    return [
        HostsRow(
            system=system.value,
            hosts=hosts,
            ranks=ranks,
            bytes=system.size_bytes,
            median_s=median_s,
            line_s=line_seconds(system.size_bytes, hosts, rate_bits),
            vs_gloo=medians[system.gloo] / median_s if system.gloo in medians else None,
        )
        for system, median_s in medians.items()
    ]


def cells(row: HostsRow) -> tuple[str, ...]:
    """Return a line of the table for people: system, time, and how it compares with the line alone and with Gloo."""
    ratio = "" if row.vs_gloo is None else f"{row.vs_gloo:.2f}x"
    return row.system, format_time(row.median_s), f"{row.median_s / row.line_s:.2f}x", ratio
