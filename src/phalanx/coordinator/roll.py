"""Who is here: those who said hello, and those of them who are in the present epoch."""

from collections.abc import Iterable

from phalanx.coordinator.terms import Terms
from phalanx.coordinator.worker import NO_RANK, Worker, assign_ranks, objection
from phalanx.wire import Hello


class Roll:
    """All workers by connection, in order of arrival, and the members of the present epoch by rank."""

    def __init__(self, terms: Terms) -> None:
        self.workers: dict[int, Worker] = {}
        self.members: dict[int, Worker] = {}
        self.benched: set[str] = set()  # to blame for the end of an epoch: they wait until a step has succeeded
        self._terms = terms
        self._size: int | None = None  # what the first worker said, where the terms do not say it

    @property
    def least(self) -> int | None:
        """How few workers make an epoch, once that is known."""
        return self._terms.minimum or self._size

    @property
    def most(self) -> int | None:
        """How many workers an epoch has at most, once that is known."""
        return self._terms.maximum or self.least

    @property
    def present(self) -> list[Worker]:
        """Those who have not left."""
        return [each for each in self.workers.values() if not each.has_left]

    @property
    def waiting(self) -> list[Worker]:
        """Those who are in no epoch and want to be."""
        return [each for each in self.present if not self.is_member(each)]

    @property
    def staying(self) -> list[Worker]:
        """Those who are members, and have not left."""
        return [each for each in self.members.values() if not each.has_left]

    @property
    def left(self) -> list[Worker]:
        """Those who are members, and have left."""
        return [each for each in self.members.values() if each.has_left]

    @property
    def has_room_for_waiting(self) -> bool:
        """Whether somebody waits and could be admitted."""
        return len(self.members) < (self.most or 0) and bool(self.waiting)

    def is_member(self, worker: Worker) -> bool:
        """Whether a worker is in the present epoch."""
        return self.members.get(worker.rank) is worker

    def named(self, name: str) -> Worker | None:
        """The worker of this name, if it has one and is here."""
        return next((each for each in self.workers.values() if name and each.hello.name == name), None)

    def objection(self, hello: Hello) -> str | None:
        """Why a worker does not fit to those who are there, if it does not."""
        return objection(hello, self.present, self._terms)

    def enter(self, worker: Worker) -> None:
        """A worker has come."""
        if not self.present:
            self._size = worker.hello.size
        self.workers[worker.connection] = worker

    def take_silent(self, now: float) -> list[Worker]:
        """Those of whom nothing was heard for too long: they are here no more."""
        silent = [each for each in self.workers.values() if now - each.heard_at > self._terms.patience_s]
        for worker in silent:
            del self.workers[worker.connection]
        return silent

    def candidates(self, step: int, *, is_plain: bool) -> list[Worker]:
        """Who would be in an epoch that began now, those who hold the state of ``step`` first."""
        present = self.waiting if is_plain else self.present  # who was in a plain group is through with it
        willing = [each for each in present if each.hello.name not in self.benched]
        is_enough = len(willing) >= (self.least or 0) and any(each.step == step for each in willing)
        chosen = willing if is_enough else present
        return sorted(chosen, key=lambda each: (each.step != step, not self.is_member(each)))[: self.most]

    def seat(self, workers: Iterable[Worker]) -> dict[int, Worker]:
        """Make these the members, and nobody else; by rank."""
        for worker in self.members.values():
            worker.rank = NO_RANK
        ranks = assign_ranks(list(workers))
        for rank, worker in ranks.items():
            worker.rank = rank
        self.members = ranks
        return ranks
