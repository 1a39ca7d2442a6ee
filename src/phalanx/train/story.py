"""The story of a run, in figures and in plain sentences."""

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import msgspec

from phalanx.train.incidents import Incident, count, join, seconds
from phalanx.train.record import Result, StepRecord

_MOST_TOLD = 40  # incidents one by one; of more, the first and the last are, and the others are put together
_FIRST, _LAST, _HEAPS = 10, 10, 20
_MOST_NUMBERS = 8


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in the directory of a run. ``incidents`` is None if nobody wrote its events down.

    ``checkpoints`` has the numbers of steps after which the checkpoints in the directory were saved.
    """

    run_dir: str
    incidents: Sequence[Incident] | None = None
    steps: Sequence[StepRecord] = ()
    planned_steps: int | None = None
    result: Result | None = None
    checkpoints: Sequence[int] = ()


class Told(msgspec.Struct, frozen=True):
    """When something happened, in seconds since 1970, at which step, and what it was."""

    time: float
    step: int
    words: str


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run. ``began`` and ``ended`` are in seconds since 1970, by the first and the last event.

    ``crews`` says how many workers took how many steps in a row. ``saved`` has the numbers of steps after which
    checkpoints were saved, and ``kept`` those of the checkpoints that are still there.
    """

    run_dir: str
    has_events: bool
    began: float | None
    ended: float | None
    end: str
    steps: int
    planned_steps: int | None
    losses: int
    evictions: int
    leaves: int
    joins: int
    coordinator_restarts: int
    recoveries_s: list[float]
    lost_s: float
    median_recovery_s: float | None
    longest_recovery_s: float | None
    stood_still_s: float
    crews: list[tuple[int, int]]
    saved: list[int]
    kept: list[int]
    told: list[Told]


def make_story(found: Findings, *, is_whole: bool = False) -> Story:
    """Return the story of a run. Unless it ``is_whole``, many similar incidents are put together."""
    incidents = found.incidents or []
    recoveries = _recoveries(incidents)
    saved = {record.step + 1 for record in found.steps if record.state_digest is not None}
    return Story(
        run_dir=found.run_dir,
        has_events=found.incidents is not None,
        began=incidents[0].time if incidents else None,
        ended=incidents[-1].time if incidents else None,
        end=_describe_end(found),
        steps=found.steps[-1].step + 1 if found.steps else max((_taken(each) for each in incidents), default=0),
        planned_steps=found.planned_steps,
        losses=sum(each.losses for each in incidents),
        evictions=sum(each.evictions for each in incidents),
        leaves=sum(each.leaves for each in incidents),
        joins=sum(each.joins for each in incidents),
        coordinator_restarts=sum(each.restarts for each in incidents),
        recoveries_s=recoveries,
        lost_s=sum(recoveries),
        median_recovery_s=statistics.median(recoveries) if recoveries else None,
        longest_recovery_s=max(recoveries, default=None),
        stood_still_s=sum(each.stood_still_s or 0.0 for each in incidents),
        crews=[(number, len(list(steps))) for number, steps in groupby(record.workers for record in found.steps)],
        saved=sorted(saved | set(found.checkpoints)),
        kept=sorted(found.checkpoints),
        told=[Told(each.time, each.step, each.words) for each in (incidents if is_whole else _shorten(incidents))],
    )


def write_story(story: Story) -> str:
    """Return the story as text: what happened when, how the run ended, and a summary."""
    if story.began is None:
        why = "an empty file of events" if story.has_events else "no events: nobody wrote them down"
        lines = [f"The run in {story.run_dir} has {why}. Its other files tell this:", ""]
    else:
        lines = [f"{datetime.fromtimestamp(story.began, UTC):%Y-%m-%d %H:%M:%S} UTC, {story.run_dir}", ""]
        lines += [f"{_clock(each.time - story.began):>10}  {each.words}" for each in story.told]
        lines += [""]
    if not story.told or story.told[-1].words != story.end:
        lines.append(story.end)
    return "\n".join([*lines, *_summarise(story)])


def _describe_end(found: Findings) -> str:
    """Return how the run ended, by its result or by its events."""
    result, planned = found.result, found.planned_steps
    if result is not None:
        loss = "" if result.eval_loss is None else f" The loss on held-out text is {result.eval_loss:.3f}."
        if planned is not None and result.steps < planned:
            return f"The run was stopped after {result.steps:,} of {count(planned, 'step')}.{loss}"
        return f"The run is complete.{loss} The digest of its weights is {result.digest[:16]}."
    last = next((each for each in reversed(found.incidents or []) if not each.is_minor), None)
    if last is not None and last.ends:
        return last.words
    return "Nothing says how the run ended: it is still going on, or all of it was killed."


def _shorten(incidents: Sequence[Incident]) -> list[Incident]:
    """Return the incidents without the minor ones, and put together if there are many."""
    major = [each for each in incidents if not each.is_minor]
    if len(major) <= _MOST_TOLD:
        return major
    middle = major[_FIRST:-_LAST]
    size = -(-len(middle) // _HEAPS)
    heaps = [middle[start : start + size] for start in range(0, len(middle), size)]
    return [*major[:_FIRST], *(_put_together(heap) for heap in heaps), *major[-_LAST:]]


def _put_together(heap: Sequence[Incident]) -> Incident:
    first, last = heap[0], heap[-1]
    if len(heap) == 1:
        return first
    tally = _tally(
        starts=sum(each.starts for each in heap),
        ends=sum(each.ends for each in heap),
        losses=sum(each.losses for each in heap),
        evictions=sum(each.evictions for each in heap),
        leaves=sum(each.leaves for each in heap),
        joins=sum(each.joins for each in heap),
        restarts=sum(each.restarts for each in heap),
    )
    where = f"Steps {first.step} to {last.step}, in {seconds(last.time - first.time)}"
    words = " ".join([f"{where}: {tally}.", *_describe_recoveries(_recoveries(heap))])
    return Incident(time=first.time, step=first.step, words=words)


def _summarise(story: Story) -> list[str]:
    planned = f" of {story.planned_steps:,}" if story.planned_steps is not None else ""
    lines = [f"Steps: {story.steps:,}{planned}{_describe_crews(story.crews)}."]
    if story.began is not None and story.ended is not None:
        tally = _tally(
            losses=story.losses,
            evictions=story.evictions,
            leaves=story.leaves,
            joins=story.joins,
            restarts=story.coordinator_restarts,
        )
        lines.append(f"In {seconds(story.ended - story.began)}: {tally}.")
    if story.recoveries_s:
        lines += [
            f"Recoveries: {len(story.recoveries_s):,}, {seconds(story.lost_s)} together.",
            *_describe_recoveries(story.recoveries_s),
        ]
    if story.joins:
        lines.append(f"While workers joined, the others stood still for {seconds(story.stood_still_s)} together.")
    if story.saved:
        kept = f"; still there: {_numbers(story.kept)}" if story.kept else "; none is still there"
        lines.append(f"Checkpoints were saved after these numbers of steps: {_numbers(story.saved)}{kept}.")
    return lines


def _taken(incident: Incident) -> int:
    """Return how many steps had been taken after an incident, at least. Steps are counted from 0."""
    has_counted = incident.recovery_s is not None or incident.joins > 0
    return incident.step + 1 if has_counted else incident.step


def _recoveries(incidents: Sequence[Incident]) -> list[float]:
    return [each.recovery_s for each in incidents if each.recovery_s is not None]


def _describe_recoveries(recoveries: Sequence[float]) -> list[str]:
    if not recoveries:
        return []
    median, longest = statistics.median(recoveries), max(recoveries)
    return [f"The next step counted after {seconds(median)} in the median, and after {seconds(longest)} at most."]


def _tally(
    *, losses: int, evictions: int, leaves: int, joins: int, restarts: int, starts: int = 0, ends: int = 0
) -> str:
    """Return how many of each there were, without those that there were none of."""
    said = [
        (losses, f"{count(losses, 'worker')} lost"),
        (evictions, f"{count(evictions, 'worker')} sent away"),
        (leaves, f"{count(leaves, 'worker')} left before the end"),
        (joins, f"{count(joins, 'worker')} joined"),
        (restarts, f"{count(restarts, 'restart')} of the coordinator"),
        (starts, f"{count(starts, 'start')} of the run"),
        (ends, f"{count(ends, 'end')} of the run"),
    ]
    return join([words for number, words in said if number]) or "nobody was lost, and nobody joined"


def _describe_crews(crews: Sequence[tuple[int, int]]) -> str:
    if not crews:
        return ""
    if len(crews) <= _MOST_NUMBERS:
        named = [f"{steps:,} with {count(workers, 'worker')}" for workers, steps in crews]
        return f", {join(named)}"
    sizes = [workers for workers, _ in crews]
    return f", with {min(sizes):,} to {count(max(sizes), 'worker')}, which changed {len(crews) - 1:,} times"


def _numbers(numbers: Sequence[int]) -> str:
    if len(numbers) <= _MOST_NUMBERS:
        return join([f"{number:,}" for number in numbers])
    return f"{numbers[0]:,}, {numbers[1]:,}, ... {numbers[-1]:,} ({len(numbers):,} in all)"


def _clock(passed_s: float) -> str:
    tenths = max(0, round(passed_s * 10))
    return f"{tenths // 36_000}:{tenths // 600 % 60:02}:{tenths % 600 / 10:04.1f}"
