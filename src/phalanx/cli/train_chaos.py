"""What ``phalanx train --chaos`` has done to a run, and how the run got over it."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from phalanx.coordinator.events import (
    Admitted,
    CoordinatorStarted,
    EpochBegan,
    Event,
    Recovered,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)
from phalanx.launch.chaos import Mishap
from phalanx.launch.resource_count import ResourceCount
from phalanx.launch.storm import Struck, Weather
from phalanx.train.record import StepRecord

_LETHAL = (Mishap.KILL, Mishap.SEGFAULT)


class Recovery(msgspec.Struct, frozen=True):
    """How the run got over the loss of a worker: seconds from the failure to each event, and the lanes that it had.

    ``lanes_s`` is how long the slowest worker then computed the lanes that were missing. In the step that was committed
    next, ``newcomers`` workers got the state of the others first.
    """

    mishap: str
    step: int
    lanes: int
    noticed_s: float
    formed_s: float
    committed_s: float
    lanes_s: float
    newcomers: int

    @property
    def rest_s(self) -> float:
        """The time until the commit without that for the lanes."""
        return self.committed_s - self.lanes_s


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """How often each mishap happened, how often it was still to come, and all recoveries from killed workers."""

    happened: dict[str, int]
    missing: dict[str, int]
    joins: int
    coordinator_restarts: int
    recoveries: list[Recovery]
    before: ResourceCount | None
    after: ResourceCount | None
    counted_after: int
    """After how many mishaps the resources were last counted."""


def list_members(events: Sequence[Event]) -> list[int]:
    """Return the processes of the members of the last epoch that were not lost since."""
    members: list[int] = []
    for event in events:
        if isinstance(event, EpochBegan):
            members = [seat.pid for seat in event.members]
        elif isinstance(event, WorkerLost | WorkerEvicted | WorkerLeft):
            members = [pid for pid in members if pid != event.pid]
    return members


def summarize(weather: Weather, events: Sequence[Event], steps: Sequence[StepRecord]) -> ChaosReport:
    """Put together what was done to a run, and what its events and its log say of it."""
    lanes_s = {each.step: each.lanes_s for each in steps}
    began = [event for event in events if isinstance(event, EpochBegan)]
    return ChaosReport(
        happened=dict(Counter(each.mishap.value for each in weather.struck)),
        missing=dict(Counter(each.mishap.value for each in weather.strikes)),
        joins=sum(seat.is_new for event in began for seat in event.members),
        coordinator_restarts=sum(isinstance(event, CoordinatorStarted) and event.is_restart for event in events),
        recoveries=[each for struck in weather.struck if (each := _find_recovery(struck, events, lanes_s))],
        before=weather.before,
        after=weather.after,
        counted_after=weather.counted_after,
    )


def _find_recovery(struck: Struck, events: Sequence[Event], lanes_s: Mapping[int, float]) -> Recovery | None:
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
    return Recovery(
        mishap=struck.mishap.value,
        step=struck.step,
        lanes=lanes[0],
        noticed_s=lost.time - struck.time,
        formed_s=formed.time - struck.time,
        committed_s=committed.time - struck.time,
        lanes_s=lanes_s.get(committed.step, 0.0),
        newcomers=_count_newcomers(events, committed),
    )


def _count_newcomers(events: Sequence[Event], committed: Recovered) -> int:
    """Return how many workers took their first step with this commit."""
    admitted = (each for each in events if isinstance(each, Admitted) and each.epoch == committed.epoch)
    return sum(len(each.newcomers) for each in admitted if each.step == committed.step)


def describe_chaos(report: ChaosReport) -> str:
    """Say what happened to a run, and how long it took to get over it."""
    happened = ", ".join(f"{count} {name}" for name, count in sorted(report.happened.items())) or "nothing"
    lines = [f"\nchaos  {happened}; {report.joins} joins, {report.coordinator_restarts} coordinator restarts"]
    if report.missing:
        missing = ", ".join(f"{count} {name}" for name, count in sorted(report.missing.items()))
        lines.append(f"       the run ended before these could happen: {missing}")
    if report.recoveries:
        lines += _describe_recoveries("after the death of a worker, in ms", report.recoveries)
        lanes = statistics.median(each.lanes for each in report.recoveries)
        lines.append(f"         lanes to compute again {lanes:22g}")
    alone = [each for each in report.recoveries if not each.newcomers]
    if alone and len(alone) < len(report.recoveries):
        lines += _describe_recoveries(f"in the {len(alone)} steps without a newcomer", alone)
    if report.before and report.after:
        lines.append(f"       used by all processes           before   after {report.counted_after} mishaps")
        for name in ResourceCount.__struct_fields__:
            lines.append(f"         {name:24}{getattr(report.before, name):12}{getattr(report.after, name):12}")
    return "\n".join(lines)


def _describe_recoveries(title: str, recoveries: Sequence[Recovery]) -> list[str]:
    lines = [f"       {title:38}   median   longest"]
    for words, times in (
        ("the coordinator noticed", [each.noticed_s for each in recoveries]),
        ("the next epoch began", [each.formed_s for each in recoveries]),
        ("the next step counted", [each.committed_s for each in recoveries]),
        ("  without computing lanes", [each.rest_s for each in recoveries]),
    ):
        lines.append(f"         {words:36}{1000 * statistics.median(times):9.0f} {1000 * max(times):9.0f}")
    return lines
