"""What ``phalanx train --chaos`` has done to a run, and how the run got over it."""

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from phalanx.coordinator.events import CoordinatorStarted, EpochBegan, Event, Recovered, WorkerEvicted, WorkerLost
from phalanx.launch.chaos import Mishap
from phalanx.launch.storm import Struck, Weather

_LETHAL = (Mishap.KILL, Mishap.SEGFAULT)


class Recovery(msgspec.Struct, frozen=True):
    """How the run got over the loss of a worker: seconds from the failure to each event, and the lanes that it had."""

    mishap: str
    step: int
    lanes: int
    noticed_s: float
    formed_s: float
    committed_s: float


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """How often each mishap happened, how often it was still to come, and all recoveries from killed workers."""

    happened: dict[str, int]
    missing: dict[str, int]
    joins: int
    coordinator_restarts: int
    recoveries: list[Recovery]


def summarize(weather: Weather, events: Sequence[Event]) -> ChaosReport:
    """Put together what was done to a run, and what its events say of it."""
    began = [event for event in events if isinstance(event, EpochBegan)]
    return ChaosReport(
        happened=dict(Counter(each.mishap.value for each in weather.struck)),
        missing=dict(Counter(each.mishap.value for each in weather.strikes)),
        joins=sum(seat.is_new for event in began for seat in event.members),
        coordinator_restarts=sum(isinstance(event, CoordinatorStarted) and event.is_restart for event in events),
        recoveries=[each for struck in weather.struck if (each := _find_recovery(struck, events))],
    )


def _find_recovery(struck: Struck, events: Sequence[Event]) -> Recovery | None:
    """Return how the run got over a worker that was killed; None if it was no member, or the run ended before."""
    if struck.mishap not in _LETHAL:
        return None
    later = [event for event in events if event.time >= struck.time]
    lost = next(
        (each for each in later if isinstance(each, WorkerLost | WorkerEvicted) and each.pid in struck.pids), None
    )
    if lost is None or lost.rank is None:
        return None
    before = [event for event in events if isinstance(event, EpochBegan) and event.time <= lost.time]
    lanes = [seat.lanes for event in before[-1:] for seat in event.members if seat.pid == lost.pid]
    formed = next((each for each in later if isinstance(each, EpochBegan) and each.time >= lost.time), None)
    committed = next((each for each in later if isinstance(each, Recovered) and each.time >= lost.time), None)
    if not lanes or formed is None or committed is None:
        return None
    times = (event.time - struck.time for event in (lost, formed, committed))
    return Recovery(struck.mishap.value, struck.step, lanes[0], *times)


def describe_chaos(report: ChaosReport) -> str:
    """Say what happened to a run, and how long it took to get over it."""
    happened = ", ".join(f"{count} {name}" for name, count in sorted(report.happened.items())) or "nothing"
    lines = [f"\nchaos  {happened}; {report.joins} joins, {report.coordinator_restarts} coordinator restarts"]
    if report.missing:
        missing = ", ".join(f"{count} {name}" for name, count in sorted(report.missing.items()))
        lines.append(f"       the run ended before these could happen: {missing}")
    if report.recoveries:
        lines.append("       after the death of a worker, in ms    median   longest")
        for words, times in (
            ("the coordinator noticed", [each.noticed_s for each in report.recoveries]),
            ("the next epoch began", [each.formed_s for each in report.recoveries]),
            ("the next step counted", [each.committed_s for each in report.recoveries]),
        ):
            lines.append(f"         {words:36}{1000 * statistics.median(times):9.0f} {1000 * max(times):9.0f}")
        lines.append(
            f"         lanes to compute again {statistics.median(each.lanes for each in report.recoveries):22g}"
        )
    return "\n".join(lines)
