"""What ``phalanx bench step`` measures, and its figures. The workers run ``step_worker``."""

import statistics
from collections.abc import Sequence
from enum import Enum

import msgspec

from phalanx.bench.text import format_time
from phalanx.bench.training.driver import Training, Turns, drive
from phalanx.errors import ConfigError

HEADINGS = ("system", "median time", "overhead", "over unguarded")


class StepSystem(Enum):
    """A way to take a training step on several ranks."""

    ENGINE = "engine"
    """``phalanx.parallel.Engine``, with one lane for each worker."""
    ENGINE_TELEMETRY = "engine-telemetry"
    """The same, recording and writing what every rank does when."""
    ENGINE_GLOO = "engine-gloo"
    """The same over Gloo, by a ``TorchExchange``."""
    ENGINE_ELASTIC = "engine-elastic"
    """The same in an elastic run, whose coordinator is a process of its own with a journal and events."""
    ENGINE_UNGUARDED = "engine-unguarded"
    """The same without digest, guard and vote, so that nobody would notice a failure."""
    DATA_PARALLEL = "data-parallel"
    """``phalanx.parallel.DataParallel``."""
    DDP_GLOO = "ddp-gloo"
    """torch's DistributedDataParallel over Gloo."""
    NO_EXCHANGE = "no-exchange"
    """The same processes without any exchange."""

    @property
    def is_engine(self) -> bool:
        """Whether an ``Engine`` takes the steps."""
        return self.value.startswith("engine")


class StepRow(msgspec.Struct, frozen=True):
    """The figures of one system: the median step, and its overhead over no exchange, if that was measured.

    ``telemetry_cost`` is what recording adds to a step, if that was measured: the median of pairs of steps, one with
    and one without it, that were taken one after the other. Pairs in either order count the same. ``over_unguarded`` is
    likewise what a step takes longer than the unguarded one of its round.
    """

    system: str
    ranks: int
    parameters: int
    median_s: float
    overhead: float | None
    telemetry_cost: float | None = None
    over_unguarded: float | None = None


def choose_telemetry(systems: Sequence[StepSystem], states: str) -> list[StepSystem]:
    """Return the systems with the engine once for each of ``states``: "on", "off" or both, as in "on,off"."""
    wanted = [state.strip() for state in states.split(",")]
    if not wanted or not {"on", "off"}.issuperset(wanted) or len(set(wanted)) != len(wanted):
        raise ConfigError(f"--telemetry is on, off, or on,off, not {states!r}")
    engines = [StepSystem.ENGINE_TELEMETRY if state == "on" else StepSystem.ENGINE for state in wanted]
    return [each for system in systems for each in (engines if system is StepSystem.ENGINE else [system])]


def measure_steps(training: Training) -> list[StepRow]:
    """Start workers, have them take steps in every system in turn, and return a row for each system."""
    return rows(drive("phalanx.bench.training.step_worker", training, training.ranks, Turns), training.ranks)


def rows(turns: Turns, ranks: int) -> list[StepRow]:
    """Return a row for each system."""
    medians = {system: statistics.median(each) for system, each in turns.seconds.items()}
    base = medians.get(StepSystem.NO_EXCHANGE.value)
    plain = turns.seconds.get(StepSystem.ENGINE.value)
    unguarded = turns.seconds.get(StepSystem.ENGINE_UNGUARDED.value)
    return [
        StepRow(
            system,
            ranks,
            turns.parameters,
            median,
            None if base is None else median / base - 1,
            _excess(turns.seconds[system], plain) if system == StepSystem.ENGINE_TELEMETRY.value else None,
            _excess(turns.seconds[system], unguarded),
        )
        for system, median in medians.items()
    ]


def _excess(seconds: Sequence[float], others: Sequence[float] | None) -> float | None:
    """Return by what fraction steps take longer than others of the same rounds; None without others."""
    if not others:
        return None
    ratios = [one / other for one, other in zip(seconds, others, strict=True)]
    orders = [each for each in (ratios[::2], ratios[1::2]) if each]  # rounds take the systems in turn and in reverse
    return statistics.mean(map(statistics.median, orders)) - 1


def describe_cost(rows: Sequence[StepRow]) -> str:
    """Return a line about what telemetry costs; empty if that was not measured."""
    costs = [row.telemetry_cost for row in rows if row.telemetry_cost is not None]
    return f"\ntelemetry adds {costs[0]:+.2%} to a step: the median of pairs of steps" if costs else ""


def cells(row: StepRow) -> tuple[str, ...]:
    """Return a line of the table for people: system, time, overhead, and how much longer than unguarded it takes."""
    ratios = ("" if ratio is None else f"{ratio:+.1%}" for ratio in (row.overhead, row.over_unguarded))
    return row.system, format_time(row.median_s), *ratios
