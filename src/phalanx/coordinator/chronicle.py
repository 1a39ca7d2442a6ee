"""Decides which events of a run are worth writing down.

What workers say, what they are told and the time go in, events come out. A step without an incident makes none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.coordinator.events import (
    Admitted,
    CoordinatorStarted,
    EpochBegan,
    EpochEnded,
    Event,
    Recovered,
    RunEnded,
    Seat,
    WorkerCame,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)
from phalanx.coordinator.record import Past
from phalanx.wire import Commit, Evict, Heard, Hello, Leave, Message, Refused, Revoked, Welcome


@dataclass(slots=True)
class _Acquaintance:
    """A worker whose Hello was heard, and its rank if it was in an epoch."""

    hello: Hello
    is_accepted: bool = False
    rank: int | None = None

    @property
    def host(self) -> str:
        """The machine as people know it; empty if the worker did not say."""
        return self.hello.name.partition(":")[0]  # a name begins with it


class Chronicle:
    """Tells the events of a run that begins now, or that a coordinator continues after ``past``."""

    def __init__(self, past: Past, now: float) -> None:
        self._past = past
        self._workers: dict[int, _Acquaintance] = {}  # by connection
        self._epoch = past.epoch
        self._step = past.step  # at which the epoch began
        self._names = past.names  # of the members of the present epoch, or of the last one
        self._takes_steps = False
        self._seats: dict[int, Seat] = {}
        self._newcomers: set[int] = set()  # connections of members that have not been in a commit yet
        self._began_at = now
        self._trouble_at: float | None = now if past.epoch else None  # since when no step has counted
        self._lost = 0  # members, since then
        self.awaits_commit = False
        """Whether the next commit may be worth an event. It is not in a calm run."""
        self._is_over = False

    def start(self) -> list[Event]:
        """Return the event of the coordinator's own beginning."""
        return [CoordinatorStarted(is_restart=self._past.epoch > 0, step=self._past.step)]

    def hear(self, connection: int, message: Message) -> list[Event]:
        """Return what a message of a worker means, before anything is done about it."""
        match message:
            case Hello() if connection not in self._workers:
                self._workers[connection] = _Acquaintance(message)
            case Leave():
                if worker := self._part_with(connection):
                    return [WorkerLeft(rank=worker.rank, pid=worker.hello.pid, host=worker.host)]
            case _:
                pass
        return []

    def hang_up(self, connection: int, why: str) -> list[Event]:
        """Return what it means that a connection closed."""
        if worker := self._part_with(connection):
            words = f"its connection closed ({why})"
            return [WorkerLost(rank=worker.rank, pid=worker.hello.pid, host=worker.host, words=words)]
        return []

    def tell(self, connections: Sequence[int], message: Message, now: float) -> list[Event]:
        """Return what it means that the workers behind these connections were told ``message``."""
        match message:
            case Commit():
                is_first = self.awaits_commit and message.step >= self._step
                return self._tell_commit(message, now) if is_first else []
            case Heard():
                return [self._accept(self._workers[each]) for each in connections if each in self._workers]
            case _ if self._is_over:
                return []
            case Welcome():
                return self._tell_welcome(connections[0], message, now)
            case Evict(words=words) | Refused(reason=words):
                return [self._evict(worker, words) for each in connections if (worker := self._part_with(each))]
            case Revoked():
                return self._tell_revoked(message, now)
            case _:
                return []

    def end(self, step: int, words: str, *, has_halted: bool) -> list[Event]:
        """Return the event of the end of the run. What the workers do afterwards is of no interest."""
        if self._is_over:
            return []
        self._is_over = True
        return [RunEnded(step=step, words=words, has_halted=has_halted)]

    def _part_with(self, connection: int) -> _Acquaintance | None:
        """Forget a worker, and return it if its going is worth an event."""
        worker = self._workers.pop(connection, None)
        if worker is None or not worker.is_accepted or self._is_over:
            return None
        if worker.rank is not None:
            self._lost += 1
        return worker

    def _accept(self, worker: _Acquaintance) -> Event:
        worker.is_accepted = True
        return WorkerCame(rank=None, pid=worker.hello.pid, host=worker.host)

    def _evict(self, worker: _Acquaintance, words: str) -> Event:
        return WorkerEvicted(rank=worker.rank, pid=worker.hello.pid, host=worker.host, words=words)

    def _tell_welcome(self, connection: int, welcome: Welcome, now: float) -> list[Event]:
        """Note one member of an epoch, and return that the epoch began when all members are noted."""
        worker = self._workers.get(connection)
        if worker is None or welcome.epoch < self._epoch:
            return []  # the worker is gone, and the epoch with it
        if welcome.epoch > self._epoch:
            self._epoch, self._step, self._began_at = welcome.epoch, welcome.step, now
            self._seats.clear()
            for each in self._workers.values():
                each.rank = None
        is_new = bool(self._names) and worker.hello.name not in self._names
        if is_new:
            self._newcomers.add(connection)
        first, end = welcome.members[welcome.rank].lanes
        worker.rank = welcome.rank
        self._seats[welcome.rank] = Seat(welcome.rank, worker.hello.pid, worker.host, end - first, is_new)
        if len(self._seats) < len(welcome.members):
            return []
        return [self._begin(welcome)]

    def _begin(self, welcome: Welcome) -> Event:
        names = (each.hello.name for each in self._workers.values() if each.rank is not None)
        self._takes_steps = any(seat.lanes for seat in self._seats.values())
        self.awaits_commit = self._takes_steps
        self._names = frozenset(names) if self._takes_steps else frozenset()  # nobody joins a plain group later
        if self._trouble_at is None:
            self._lost = 0
        return EpochBegan(epoch=welcome.epoch, step=welcome.step, members=tuple(self._seats.values()))

    def _tell_revoked(self, revoked: Revoked, now: float) -> list[Event]:
        if self._trouble_at is None and self._takes_steps:  # a plain group never recovers
            self._trouble_at = now
        cause = revoked.cause.value
        return [EpochEnded(epoch=revoked.epoch, cause=cause, rank=revoked.rank, words=revoked.words)]

    def _tell_commit(self, commit: Commit, now: float) -> list[Event]:
        """Return what the first commit of an epoch ends: a recovery, or the wait for a newcomer."""
        events: list[Event] = []
        if self._trouble_at is not None:
            events.append(
                Recovered(
                    epoch=self._epoch,
                    step=commit.step,
                    lost=self._lost,
                    members=len(self._seats),
                    epoch_s=self._began_at - self._trouble_at,
                    commit_s=now - self._trouble_at,
                )
            )
        ranks = {self._workers[each].rank for each in self._newcomers if each in self._workers}
        if newcomers := tuple(seat for rank, seat in self._seats.items() if rank in ranks):
            events.append(
                Admitted(
                    epoch=self._epoch,
                    step=commit.step,
                    newcomers=newcomers,
                    members=len(self._seats),
                    stood_still_s=now - self._began_at,
                )
            )
        self.awaits_commit, self._trouble_at, self._lost = False, None, 0
        self._newcomers.clear()
        return events
