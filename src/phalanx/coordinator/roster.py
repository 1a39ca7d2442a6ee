"""The roster: all workers that said Hello, and which of them are in the present epoch."""

from collections.abc import Iterable

from phalanx.coordinator.terms import Terms
from phalanx.coordinator.worker import NO_RANK, Worker, assign_ranks, objection
from phalanx.wire import Hello


class Roster:
    """All workers by connection in order of arrival, and the members of the present epoch by rank."""

    def __init__(self, terms: Terms) -> None:
        self.workers: dict[int, Worker] = {}
        self.members: dict[int, Worker] = {}
        self.benched: set[str] = set()  # names of workers that ended an epoch: they wait until a step has succeeded
        self.absent: dict[str, int] = {}  # workers that were lost and may come back, and the step they may hold
        self.size = 0
        """How many members the present epoch began with."""
        self._terms = terms
        self._size: int | None = None  # what the first worker said, if the terms do not say it

    @property
    def least(self) -> int | None:
        """The smallest number of workers of an epoch, once that is known."""
        return self._terms.minimum or self._size

    @property
    def most(self) -> int | None:
        """The largest number of workers of an epoch, once that is known."""
        return self._terms.maximum or self.least

    @property
    def present(self) -> list[Worker]:
        """The workers that have not left."""
        return [each for each in self.workers.values() if not each.has_left]

    @property
    def waiting(self) -> list[Worker]:
        """The workers that are in no epoch and want to be."""
        return [each for each in self.present if not self.is_member(each)]

    @property
    def staying(self) -> list[Worker]:
        """The members that have not left."""
        return [each for each in self.members.values() if not each.has_left]

    @property
    def left(self) -> list[Worker]:
        """The members that have left."""
        return [each for each in self.members.values() if each.has_left]

    @property
    def has_room_for_waiting(self) -> bool:
        """Whether a worker waits and could be admitted."""
        return len(self.members) < (self.most or 0) and bool(self.waiting)

    @property
    def lacks_keeper(self) -> bool:
        """Whether no member can keep the run, and a worker that waits can."""
        if any(each.hello.can_keep for each in self.members.values()):
            return False
        return any(each.hello.can_keep and each.hello.name not in self.benched for each in self.waiting)

    def is_member(self, worker: Worker) -> bool:
        """Whether a worker is in the present epoch."""
        return self.members.get(worker.rank) is worker

    def named(self, name: str) -> Worker | None:
        """Return the worker of this name, or None if there is none."""
        return next((each for each in self.workers.values() if name and each.hello.name == name), None)

    def objection(self, hello: Hello) -> str | None:
        """Return why a worker cannot be in one group with those who are present, or None if it can."""
        return objection(hello, self.present, self._terms)

    def enter(self, worker: Worker) -> None:
        """Add a worker."""
        if not self.present:
            self._size = worker.hello.size
        self.workers[worker.connection] = worker
        self.absent.pop(worker.hello.name, None)

    def forget_outdated(self, step: int) -> None:
        """Forget lost workers that cannot hold the state of ``step``."""
        self.absent = {name: held for name, held in self.absent.items() if held >= step}

    def candidates(self, step: int, *, is_plain: bool) -> list[Worker]:
        """Return the workers of an epoch that would begin now, in the order of their ranks.

        If there are too many, those that hold the state of ``step`` go first, then members. But one of them can keep
        the run, if anybody can, and if another one holds the state.
        """
        present = self.waiting if is_plain else self.present  # the members of a plain group are finished with it
        willing = [each for each in present if each.hello.name not in self.benched]
        is_enough = len(willing) >= (self.least or 0) and any(each.step == step for each in willing)
        chosen = willing if is_enough else present
        ordered = sorted(chosen, key=lambda each: (each.step != step, not self.is_member(each)))
        first, rest = ordered[: self.most], ordered[self.most or len(ordered) :]
        keeper = next((each for each in rest if each.hello.can_keep), None)
        if keeper and len(first) > 1 and not any(each.hello.can_keep for each in first):
            first[-1] = keeper
        return sorted(first, key=lambda each: not each.hello.can_keep)

    def seat(self, workers: Iterable[Worker]) -> dict[int, Worker]:
        """Make exactly these workers the members, and return them by rank."""
        for worker in self.members.values():
            worker.rank = NO_RANK
        ranks = assign_ranks(list(workers))
        for rank, worker in ranks.items():
            worker.rank, worker.idle_since = rank, None
        self.members = ranks
        self.size = len(ranks)
        return ranks
