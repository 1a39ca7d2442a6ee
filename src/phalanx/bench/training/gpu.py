"""What ``phalanx bench gpu`` measures, and its figures. The workers run ``gpu_worker``."""

import statistics
from enum import Enum

import msgspec

from phalanx.bench.text import format_time
from phalanx.bench.training.driver import drive

HEADINGS = ("system", "median step", "over its floor", "tokens/s", "memory of a rank")


class GpuSystem(Enum):
    """A way to take a training step on ranks that share a GPU. Names with ``exact`` only use deterministic kernels."""

    ENGINE = "engine"
    """``phalanx.parallel.Engine``, with one lane for each rank, which is exact."""
    ENGINE_HOST = "engine-host"
    """The same with gradients that go through memory of the host."""
    DATA_PARALLEL = "data-parallel"
    """``phalanx.parallel.DataParallel``."""
    DATA_PARALLEL_HOST = "data-parallel-host"
    """The same with gradients that go through memory of the host."""
    DDP_GLOO = "ddp-gloo"
    """torch's DistributedDataParallel over Gloo."""
    NO_EXCHANGE = "no-exchange"
    """The same processes without any exchange."""
    NO_EXCHANGE_EXACT = "no-exchange-exact"
    """The same with the kernels that an engine uses."""

    @property
    def is_exact(self) -> bool:
        """Whether only deterministic kernels are used."""
        return self in (GpuSystem.ENGINE, GpuSystem.ENGINE_HOST, GpuSystem.NO_EXCHANGE_EXACT)

    @property
    def floor(self) -> "GpuSystem":
        """The system that does the same without any exchange."""
        return GpuSystem.NO_EXCHANGE_EXACT if self.is_exact else GpuSystem.NO_EXCHANGE


class GpuTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tells workers to take ``steps`` steps in each system and turn, on ``batch`` sequences of ``tokens`` tokens each.

    A system is made anew in each of its turns, since the GPU has no room for all of them at once.
    """

    systems: tuple[str, ...]
    ranks: int
    turns: int
    steps: int
    batch: int
    tokens: int
    layers: int = 24
    width: int = 1024
    vocabulary: int = 50304

    def describe(self, parameters: int) -> str:
        """Return a title for a table of such steps."""
        work = f"{self.batch} x {self.tokens} tokens each"
        return f"{self.ranks} ranks on one GPU, {parameters / 1e6:.0f} M parameters, {work}"


class GpuAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workers' answer: the seconds of the slowest rank for every step of each system, and the memory of a rank."""

    parameters: int
    device: str
    seconds: dict[str, list[float]]
    memory_bytes: dict[str, int]
    routes: dict[str, str]


class GpuRow(msgspec.Struct, frozen=True):
    """The figures of one system. ``overhead`` is what a step costs over the floor of the system, if it was measured."""

    system: str
    ranks: int
    parameters: int
    median_s: float
    least_s: float
    overhead: float | None
    tokens_per_s: float
    memory_bytes: int
    route: str


def measure_gpu(task: GpuTask) -> tuple[str, list[GpuRow]]:
    """Start workers, have them take steps in every system in turn; return the GPU and a row for each system."""
    answer = drive("phalanx.bench.training.gpu_worker", task, task.ranks, GpuAnswer)
    return answer.device, rows(answer, task)


def rows(answer: GpuAnswer, task: GpuTask) -> list[GpuRow]:
    """Return a row for each system."""
    medians = {system: statistics.median(each) for system, each in answer.seconds.items()}
    found = []
    for system, median in medians.items():
        floor = medians.get(GpuSystem(system).floor.value)
        found.append(
            GpuRow(
                system,
                task.ranks,
                answer.parameters,
                median,
                min(answer.seconds[system]),
                None if floor is None else median / floor - 1,
                task.ranks * task.batch * task.tokens / median,
                answer.memory_bytes[system],
                answer.routes.get(system, ""),
            )
        )
    return found


def cells(row: GpuRow) -> tuple[str, ...]:
    """Return a line of the table for people."""
    overhead = "" if row.overhead is None else f"{row.overhead:+.1%}"
    return (
        row.system,
        format_time(row.median_s),
        overhead,
        f"{row.tokens_per_s:,.0f}",
        f"{row.memory_bytes / 1e9:.1f} GB",
    )
