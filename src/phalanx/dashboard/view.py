"""What the page shows of a run, as one value made from facts."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from phalanx.coordinator.events import (
    CoordinatorStarted,
    EpochBegan,
    Event,
    RunEnded,
    Seat,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)
from phalanx.dashboard.series import Grid, grid_of, smooth
from phalanx.dashboard.strips import Strips
from phalanx.train.incidents import Incident
from phalanx.train.run_status import RunStatus
from phalanx.train.story import Story

_MOST_TOLD = 200
_MOST_MARKS = 200
_SPEED_STEPS = 10
COLUMNS = ("step", "loss", "eval_loss", "norm", "lr", "tokens_per_s")


class Chart(msgspec.Struct, frozen=True):
    """Lines over the same ``steps``, by name."""

    steps: list[float]
    lines: dict[str, list[float | None]]


class Mark(msgspec.Struct, frozen=True):
    """Something to see at a step of all charts: a ``failure``, a ``newcomer`` or a ``checkpoint``."""

    step: int
    kind: str
    words: str


class Crewmate(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: ``state`` is "in", "new" or "done", or "lost", "sent away" or "left", and then it had the rank."""

    rank: int
    pid: int
    host: str
    lanes: int
    state: str


class Entry(msgspec.Struct, frozen=True):
    """An entry of the feed: when, in seconds since 1970, at which step, of which kind, and what happened."""

    time: float
    step: int
    kind: str
    words: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page shows. ``goodput`` is the share of the time that was not lost; see ``measure_goodput``."""

    name: str
    is_over: bool
    status: RunStatus
    end: str
    goodput: float | None
    recoveries_s: list[float]
    chart: Chart | None
    other: Chart | None
    comparison: str
    marks: list[Mark]
    crew: list[Crewmate]
    feed: list[Entry]
    strips: Strips | None
    span: tuple[float, float] | None
    has_logs: bool


def make_charts(
    run: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray] | None
) -> tuple[Chart | None, Chart | None]:
    """Return the lines of a run, and those of another run over the same steps. Each run has ``COLUMNS``."""
    grid = grid_of([each["step"] for each in (run, other) if each])
    if grid is None:
        return None, None
    return _make_chart(grid, run), _make_chart(grid, other) if other else None


def _make_chart(grid: Grid, run: Mapping[str, np.ndarray]) -> Chart:
    lines = {name: grid.line(run["step"], run[name]) for name in COLUMNS[1:-1]}
    lines["tokens_per_s"] = grid.line(run["step"], smooth(run["tokens_per_s"], _SPEED_STEPS))
    return Chart(grid.places(), lines)


def make_marks(incidents: Sequence[Incident], saved: Sequence[int]) -> list[Mark]:
    """Return the marks of all charts. Of too many checkpoints some are left out, evenly."""
    failures = [
        Mark(each.step, _kind(each), each.words) for each in incidents if _kind(each) in ("failure", "newcomer")
    ]
    every = -(-len(saved) // _MOST_MARKS) or 1
    checkpoints = [Mark(step, "checkpoint", f"checkpoint of step {step}") for step in saved[::every]]
    return failures[-_MOST_MARKS:] + checkpoints


def make_feed(incidents: Sequence[Incident]) -> list[Entry]:
    """Return what happened, the latest first."""
    return [Entry(each.time, each.step, _kind(each), each.words) for each in incidents[: -_MOST_TOLD - 1 : -1]]


def _kind(incident: Incident) -> str:
    if incident.losses or incident.evictions or incident.restarts:
        return "failure"
    if incident.joins:
        return "newcomer"
    return "minor" if incident.is_minor else "news"


def find_crew(events: Sequence[Event]) -> list[Crewmate]:
    """Return the ranks of the present epoch, and then the workers that were lost and that nobody has replaced yet."""
    seats: dict[int, Crewmate] = {}
    gone: list[Crewmate] = []
    for event in events:
        match event:
            case CoordinatorStarted(is_restart=False):
                seats, gone = {}, []
            case EpochBegan():
                seats = {seat.rank: _seat(seat) for seat in event.members}
                gone = gone[sum(seat.is_new for seat in event.members) :]
            case WorkerLost() | WorkerEvicted() | WorkerLeft() if event.rank in seats:
                word = {WorkerLost: "lost", WorkerEvicted: "sent away", WorkerLeft: "left"}[type(event)]
                gone.append(msgspec.structs.replace(seats.pop(event.rank), state=word))
            case RunEnded():
                seats = {rank: msgspec.structs.replace(each, state="done") for rank, each in seats.items()}
            case _:
                pass
    return [*(seats[rank] for rank in sorted(seats)), *gone]


def _seat(seat: Seat) -> Crewmate:
    return Crewmate(
        rank=seat.rank, pid=seat.pid, host=seat.host, lanes=seat.lanes, state="new" if seat.is_new else "in"
    )


def measure_goodput(incidents: Sequence[Incident], now: float, *, is_over: bool) -> float | None:
    """Return the share of the time in which the run was on that no failure and no newcomer took from it."""
    on_s, lost_s, since = 0.0, 0.0, None
    for each in incidents:
        lost_s += (each.recovery_s or 0.0) + (each.stood_still_s or 0.0)
        if each.starts:
            since = each.time
        elif each.ends and since is not None:
            on_s, since = on_s + each.time - since, None
    if since is not None:
        on_s += (incidents[-1].time if is_over else now) - since
    return max(0.0, 1.0 - lost_s / on_s) if on_s > 0 else None


def make_view(
    *,
    name: str,
    status: RunStatus,
    story: Story,
    incidents: Sequence[Incident],
    events: Sequence[Event],
    charts: tuple[Chart | None, Chart | None],
    comparison: str,
    strips: Strips | None,
    span: tuple[float, float] | None,
    now: float,
    is_over: bool,
    has_logs: bool,
) -> View:
    """Put together what the page shows."""
    return View(
        name=name,
        is_over=is_over,
        status=status,
        end=story.end if is_over else "",
        goodput=measure_goodput(incidents, now, is_over=is_over),
        recoveries_s=story.recoveries_s[-_MOST_TOLD:],
        chart=charts[0],
        other=charts[1],
        comparison=comparison,
        marks=make_marks(incidents, story.saved),
        crew=find_crew(events),
        feed=make_feed(incidents),
        strips=strips,
        span=span,
        has_logs=has_logs,
    )
