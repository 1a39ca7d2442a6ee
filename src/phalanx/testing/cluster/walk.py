"""Every order in which a tiny cluster can do what it does, with a crash at every point."""

import types
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from phalanx.coordinator.terms import Terms
from phalanx.testing.cluster.coordinator import CoordinatorProcess
from phalanx.testing.cluster.frames import Gone, Parcel
from phalanx.testing.cluster.laws import Laws, Violation
from phalanx.testing.cluster.stage import Act, Actor, Job, Stage, Takes
from phalanx.testing.cluster.worker import WorkerProcess

T = TypeVar("T")
_LANES = 2
_VALUES = (
    int,
    float,
    str,
    bytes,
    type(None),
    Enum,
    frozenset,
    msgspec.Struct,
    Terms,
    Job,
    range,
    Gone,
    Parcel,
)
_Event = tuple[Actor, Act, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Walked:
    """What was seen: how many different states, moves between them, and states in which all was over."""

    states: int
    moves: int
    ends: int


@dataclass(frozen=True, slots=True)
class _Move:
    """The head of a line happens, or what is due, or a crash, or a return; in its midst its actor may crash, too."""

    what: Hashable
    crash_after: int | None = None
    """How many things the actor still does."""


_TIME = _Move("time passes")
_RETURN = _Move("the coordinator returns")


def walk_all(*, workers: int = 2, steps: int = 2, crashes: int = 1) -> Walked:
    """Take every path of a tiny cluster, up to states seen before, and say how many there were.

    Next may be the first message of any connection or link, anything that a process has begun, a crash of any process
    before or in the midst of what it does, and the return of the coordinator. Time passes only when nothing else can
    happen. A worker that crashed stays away; who is connected to a crashed process hears that, and nothing is lost.
    A path ends when nobody who lives holds the state.
    Violation if a promise is broken: it has the path.
    """
    moves = ends = 0
    seen: set[int] = set()
    todo: list[tuple[_Move, ...]] = [()]
    while todo:
        path = todo.pop()
        state = _State(workers, steps, crashes)
        try:
            for move in path:
                state.take(move)
            # Straight on as far as it goes: only other ways need to be walked again from the start.
            while (key := state.key()) not in seen:
                seen.add(key)
                choices = state.choices()
                if not choices:
                    ends += 1
                    state.judge()
                    break
                moves += len(choices)
                todo += [(*path, other) for other in choices[1:]]
                asked = state.take(choices[0])
                if state.crashes:
                    todo += [(*path, _Move(choices[0].what, crash_after)) for crash_after in range(1, asked)]
                path = (*path, choices[0])
        except Exception as error:
            raise Violation(f"{error!r} after\n" + "\n".join(str(move.what) for move in path)) from error
    return Walked(len(seen), moves, ends)


class _State(Stage):
    """A tiny cluster between two moves."""

    def __init__(self, workers: int, steps: int, crashes: int) -> None:
        self.crashes = crashes  # that may still happen
        terms = Terms(minimum=1, maximum=workers)
        self._job = Job(steps=steps, lanes=_LANES, terms=terms, deadline_s=8.0, sizes=(1,))
        self._laws = Laws(self._job)
        self._lines: dict[Hashable, deque[_Event]] = {}
        self._own: set[Hashable] = set()  # lines of what concerns one process alone: no order of it matters
        self._timers: dict[tuple[str, str], tuple[float, _Event]] = {}  # a new one takes the place of an old one
        self._ticks: dict[str, float] = {}
        self._asked = 0
        self._crash_after: int | None = None
        self._coordinator = CoordinatorProcess(self, self._laws, self._job.terms)
        self._workers: dict[str, WorkerProcess] = {}
        self._coordinator.start()
        for index in range(workers):
            name = f"w{index}"
            self._workers[name] = WorkerProcess(name, self, self._laws, self._job, self._coordinator, self._workers)
            self._workers[name].start()

    @property
    def _actors(self) -> list[Actor]:
        return [self._coordinator, *self._workers.values()]

    def choices(self) -> list[_Move]:
        """What can be next; nothing, once no worker that lives holds the state: others can only wait, and be told."""
        if not any(each.is_alive and each.holds(self._laws.commits) for each in self._workers.values()):
            return []
        moves = [_Move(line) for line, events in self._lines.items() if events]
        if own := [move for move in moves if move.what in self._own]:
            return own[:1]
        if not self._coordinator.is_alive:
            moves.append(_RETURN)
        if not moves and self._next_due() is not None:
            moves.append(_TIME)
        if moves and self.crashes:
            moves += [_Move(("crash", each.name)) for each in self._actors if each.is_alive]
        return moves

    def take(self, move: _Move) -> int:
        """Let it happen; the answer is at how many points of it an actor could have crashed."""
        self._asked, self._crash_after = 0, move.crash_after
        if move == _RETURN:
            self._coordinator.start()
        elif move == _TIME:
            self._pass_time()
        elif move.what in self._lines:
            actor, act, about = self._lines[move.what].popleft()
            if actor.is_alive:
                act(*about)
        else:
            self.crashes -= 1
            next(each for each in self._actors if ("crash", each.name) == move.what).crash()
        for events in self._lines.values():  # what is on its way to a dead worker never arrives
            while events and events[0][0] in self._workers.values() and not events[0][0].is_alive:
                events.popleft()
        return self._asked

    def judge(self) -> None:
        """Whether all is well that ended here."""
        commits = self._laws.commits
        holders = {each.name: each.ending for each in self._workers.values() if each.holds(commits)}
        if None in holders.values() or (len(commits) < self._job.steps and set(holders.values()) - {"crashed"}):
            raise Violation(f"{len(commits)} steps were taken, and then: {holders}")

    def key(self) -> int:
        """The same for states that cannot be told apart."""
        lines = {line: events for line, events in self._lines.items() if events}
        in_any_order = frozenset(_pairs(lines)), frozenset(_pairs(self._timers)), frozenset(_pairs(self._ticks))
        processes = [_freeze(vars(each)) for each in (self._coordinator, *self._workers.values())]
        return hash((self.now, self.written_in, self.crashes, *in_any_order, *processes))

    def _next_due(self) -> tuple[float, str, str] | None:
        """When, to whom and what happens next if nothing else does."""
        alive = {each.name for each in self._actors if each.is_alive}
        dues = [(when, name, "tick") for name, when in self._ticks.items() if name in alive]
        dues += [(when, *which) for which, (when, _) in self._timers.items() if which[0] in alive]
        return min(dues, default=None)

    def _pass_time(self) -> None:
        due = self._next_due()
        assert due, "time passes when something is due"
        self.now, name, what = due
        if what == "tick":
            del self._ticks[name]
            next(each for each in self._actors if each.name == name).tick()
        else:
            _, (_, act, about) = self._timers.pop((name, what))
            act(*about)

    # What the processes ask for

    def post(self, takes: Takes, line: Hashable, actor: Actor, act: Act, *about: object) -> None:
        """Let something happen to ``actor`` a while later, in the order of its ``line``."""
        self._lines.setdefault(line, deque()).append((actor, act, about))
        if takes is not Takes.COMPUTING:
            self._own.add(line)

    def carry(self, source: Actor, target: Actor, line: Hashable, act: Act, *about: object) -> None:  # noqa: ARG002
        """Let something arrive from elsewhere, if the network allows."""
        self._lines.setdefault(line, deque()).append((target, act, about))

    def at(self, when: float, actor: Actor, act: Act, *about: object) -> None:
        """Let something happen to ``actor`` at a time."""
        self._timers[actor.name, act.__name__] = when, (actor, act, about)

    def tick_at(self, actor: Actor, when: float | None) -> None:
        """Let ``actor`` tick at this time, and not at another that was asked for before."""
        self._ticks.pop(actor.name, None)
        if when is not None:
            self._ticks[actor.name] = when

    def can_reach(self, source: Actor, target: Actor) -> bool:  # noqa: ARG002
        """Whether a new connection can be made."""
        return True

    def dies(self, actor: Actor) -> bool:  # noqa: ARG002
        """Whether ``actor`` crashes here, between two things that it does."""
        self._asked += 1
        if self._crash_after is None or self._asked != self._crash_after + 1:
            return False
        self.crashes -= 1
        return True

    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""
        return choices[0]

    def count(self, what: str) -> None:
        """Nothing is counted here."""


_OUTSIDE = (WorkerProcess, CoordinatorProcess, _State, Laws, type)  # they are the same, or looked at elsewhere


def _freeze(value: object) -> Hashable:
    """A value that is equal for what is equal in all its parts; processes stand for themselves, by name."""
    if isinstance(value, _VALUES):
        return value
    if isinstance(value, dict):
        return _pairs(value)
    if isinstance(value, list | tuple | deque):
        return tuple(map(_freeze, value))
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, types.MethodType):
        return value.__name__
    if isinstance(value, types.GeneratorType):
        return _freeze_frame(value)
    if isinstance(value, slice):
        return value.start, value.stop
    if isinstance(value, _OUTSIDE):
        return str(getattr(value, "name", ""))
    names = vars(value) if hasattr(value, "__dict__") else value.__slots__  # type: ignore[attr-defined]
    return tuple(_freeze(getattr(value, name)) for name in names)


def _freeze_frame(running: "types.GeneratorType[object, object, object]") -> Hashable:
    """A value that is equal for threads that are at the same place with the same variables."""
    frame = running.gi_frame
    if frame is None:
        return "over"
    inner = running.gi_yieldfrom
    return running.__name__, frame.f_lasti, _pairs(frame.f_locals), _freeze(inner) if inner else None


def _pairs(values: Mapping[T, object]) -> tuple[tuple[T, Hashable], ...]:
    return tuple((key, _freeze(each)) for key, each in values.items())
