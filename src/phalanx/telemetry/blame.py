"""Who costs a run the most time, and by what, decided from its records.

All ranks wait for the slowest one, so only the slowest rank of a step costs time: as much as it is slower than the
median of the others, lane by lane. What all ranks spend alike is nobody's fault, but may still be too much.
"""

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec
import numpy as np

from phalanx.telemetry.record import Activity, WorkerRecords
from phalanx.telemetry.step_times import StepTimes, add_up


class Waste(Enum):
    """What costs time."""

    FORWARD = "slow forward"
    BACKWARD = "slow backward"
    DATA = "late data"
    COLLECTION = "garbage collection"
    CHECKPOINT = "checkpoint"
    LINK = "slow link"


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What costs time on some ``ranks``: one, the two ends of a link, or none if all ranks are alike.

    ``share`` is the fraction of all time, and ``seconds`` that of an average step. ``own_s`` is what the rank takes in
    a step for it, ``others_s`` the median of the others, and ``words`` a sentence that says so.
    """

    ranks: tuple[int, ...]
    waste: Waste
    share: float
    seconds: float
    own_s: float
    others_s: float
    words: str


class BlameReport(msgspec.Struct, frozen=True, kw_only=True):
    """What costs the time of some steps, the most expensive first. ``step_s`` is how long an average step takes."""

    first_step: int
    last_step: int
    ranks: tuple[int, ...]
    step_s: float
    blames: tuple[Blame, ...]


_ACTIVITIES = {
    Waste.FORWARD: Activity.FORWARD,
    Waste.BACKWARD: Activity.BACKWARD,
    Waste.DATA: Activity.DATA,
    Waste.COLLECTION: Activity.COLLECT,
    Waste.CHECKPOINT: Activity.CHECKPOINT,
}
_PER_LANE = (Waste.FORWARD, Waste.BACKWARD, Waste.DATA)
_WORK = (Waste.FORWARD, Waste.BACKWARD)  # what a run is for: never too much, if all ranks are alike
_WARMUP = 2  # steps in which memory is allocated and links are made
_LEAST = 0.03  # of all time: less is not worth a sentence
_LEAST_COMMON = 0.05
_CLEAR = 1.2  # times more waiting than for any other rank; others wait in turn for those that wait for a slow one
_ADVICE = {
    Waste.FORWARD: "see what else its machine does, and compare its cores and their clock",
    Waste.BACKWARD: "see what else its machine does, and compare its cores and their clock",
    Waste.DATA: "look at its disk, or load data ahead of time",
    Waste.COLLECTION: "call gc.freeze() after the start, or make fewer objects in each step",
    Waste.CHECKPOINT: "raise run.checkpoint_every, or look at its disk",
    Waste.LINK: "look at its network: phalanx doctor measures every pair",
}
_NAMES = {
    Waste.FORWARD: "forward",
    Waste.BACKWARD: "backward",
    Waste.DATA: "loading data",
    Waste.COLLECTION: "garbage collection",
    Waste.CHECKPOINT: "saving checkpoints",
}


def find_blame(workers: Sequence[WorkerRecords]) -> BlameReport | None:
    """Return what costs a run its time; None if there is no step of which all ranks have records."""
    return judge(add_up(workers))


def judge(times: StepTimes) -> BlameReport | None:
    """Return what costs time, if it is worth a sentence. The first steps of a run do not count, if there are others."""
    is_counted = np.arange(len(times.steps)) >= (_WARMUP if len(times.steps) > 2 * _WARMUP else 0)
    if not is_counted.any():
        return None
    total_s = float(times.step_s[is_counted].sum())
    seconds = {waste: times.spent[activity][is_counted] for waste, activity in _ACTIVITIES.items()}
    found = [
        *_blame_ranks(times, seconds, times.lanes[is_counted], total_s),
        *_blame_links(times, times.exchange_s[is_counted], total_s),
        *_blame_nobody(seconds, total_s),
    ]
    return BlameReport(
        first_step=int(times.steps[is_counted][0]),
        last_step=int(times.steps[-1]),
        ranks=tuple(times.ranks.tolist()),
        step_s=total_s / int(is_counted.sum()),
        blames=tuple(sorted(found, key=lambda blame: -blame.share)),
    )


def _blame_ranks(
    times: StepTimes, seconds: dict[Waste, np.ndarray], lanes: np.ndarray, total_s: float
) -> Iterator[Blame]:
    """Yield what makes ranks the slowest ones, added up over all steps."""
    if len(times.ranks) < 2:
        return
    excess = np.stack([_excess(each, lanes if waste in _PER_LANE else None) for waste, each in seconds.items()])
    slowest = excess.sum(axis=0).argmax(axis=1)
    for column, rank in enumerate(times.ranks.tolist()):
        is_slowest = slowest == column
        for place, waste in enumerate(seconds):
            share = float(excess[place, is_slowest, column].sum()) / total_s
            if share < _LEAST:
                continue
            own_s = float(seconds[waste][:, column].mean())
            others_s = float(np.median(np.delete(seconds[waste], column, axis=1).mean(axis=0)))
            step_s = share * total_s / len(lanes)
            what = f"{_NAMES[waste]} takes {_format(own_s)} a step there, and {_format(others_s)} on the others"
            words = f"rank {rank} costs {share:.0%} of the time, {_format(step_s)} of every step: {what}"
            yield Blame(
                ranks=(rank,),
                waste=waste,
                share=share,
                seconds=step_s,
                own_s=own_s,
                others_s=others_s,
                words=f"{words}; {_ADVICE[waste]}",
            )


def _excess(seconds: np.ndarray, lanes: np.ndarray | None) -> np.ndarray:
    """Return by how much each rank takes longer than the median of the others, if they had as many lanes."""
    each = seconds if lanes is None else seconds / np.maximum(lanes, 1)
    columns = range(each.shape[1])
    others = np.stack([np.median(np.delete(each, column, axis=1), axis=1) for column in columns], axis=1)
    excess: np.ndarray = np.maximum(each - others, 0.0) * (1.0 if lanes is None else lanes)
    return excess


def _blame_links(times: StepTimes, exchange_s: np.ndarray, total_s: float) -> Iterator[Blame]:
    """Yield the slow network or link, if exchanging goes on for long after all ranks are ready."""
    share, step_s = float(exchange_s.sum()) / total_s, float(exchange_s.mean())
    if share < _LEAST_COMMON or len(times.ranks) < 2:
        return
    ranks = _find_slow_link(times)
    match ranks:
        case (rank,):
            why = f"rank {rank} sends or receives slowly; {_ADVICE[Waste.LINK]}"
        case (one, other):
            why = f"the link between rank {one} and rank {other} is slow; {_ADVICE[Waste.LINK]}"
        case _:
            why = "no single link is to blame; use larger batches, or fewer workers"
    words = f"exchanging costs {share:.0%} of the time, {_format(step_s)} of every step after all ranks were ready"
    yield Blame(
        ranks=ranks,
        waste=Waste.LINK,
        share=share,
        seconds=step_s,
        own_s=step_s,
        others_s=0.0,
        words=f"{words}: {why}",
    )


def _find_slow_link(times: StepTimes) -> tuple[int, ...]:
    """Return the rank for which, and which, waits by far the most, or else the two ends of the slowest link.

    If ranks hardly wait for each other once they are ready, the exchange is work, and that is no link's fault.
    """
    waits = times.link_waits + times.link_waits.T
    by_rank = waits.sum(axis=1)
    order = by_rank.argsort()[::-1]
    if waits.max() < times.exchange_s.sum() / 2:
        return ()
    if len(order) > 2 and by_rank[order[0]] >= _CLEAR * by_rank[order[1]]:
        return (int(times.ranks[order[0]]),)
    return tuple(sorted(int(times.ranks[place]) for place in np.unravel_index(waits.argmax(), waits.shape)))


def _blame_nobody(seconds: dict[Waste, np.ndarray], total_s: float) -> Iterator[Blame]:
    """Yield what takes much time on all ranks alike."""
    for waste, each in seconds.items():
        least_s = float(each.sum(axis=0).min())
        if waste in _WORK or least_s / total_s < _LEAST_COMMON:
            continue
        step_s = least_s / len(each)
        words = f"{_NAMES[waste]} takes {least_s / total_s:.0%} of the time on every rank, {_format(step_s)} of a step"
        yield Blame(
            ranks=(),
            waste=waste,
            share=least_s / total_s,
            seconds=step_s,
            own_s=step_s,
            others_s=step_s,
            words=f"{words}; {_ADVICE[waste]}",
        )


def write_report(report: BlameReport) -> str:
    """Return a report in sentences."""
    steps = f"steps {report.first_step} to {report.last_step}"
    ranks = "1 rank" if len(report.ranks) == 1 else f"{len(report.ranks)} ranks"
    lines = [f"{ranks}, {steps}, {_format(report.step_s)} a step"]
    lines += [blame.words for blame in report.blames]
    if not report.blames:
        lines.append("no rank, no link and no pause costs more than a few percent of the time")
    return "\n".join(lines)


def _format(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
