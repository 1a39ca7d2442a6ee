"""Everything that goes wrong in a simulated cluster, up to a time after which nothing does."""

from collections.abc import Callable

from phalanx.testing.cluster.coordinator import CoordinatorProcess
from phalanx.testing.cluster.stage import CLOSED
from phalanx.testing.cluster.time import VirtualTime
from phalanx.testing.cluster.worker import WorkerProcess

_LONGEST_S = 8.0
_MOST_FAULTS = (4, 10, 20)  # in calm, usual and bad times
_HOW_EARLY = (1, 1, 4)  # with 4, half of them are in the first sixteenth of the time


class Faults:
    """Draws what goes wrong, and lets it happen until ``over_s``.

    It is an actor, too: the one that nothing can happen to.
    """

    name = "faults"
    is_alive = True

    def __init__(
        self,
        time: VirtualTime,
        coordinator: CoordinatorProcess,
        workers: dict[str, WorkerProcess],
        spawn: Callable[[], None],
        patience_s: float,
    ) -> None:
        self.over_s = time.chance.uniform(2.0, 10.0)
        self._time = time
        self._chance = time.chance
        self._coordinator = coordinator
        self._workers = workers
        self._spawn = spawn
        self._patience_s = patience_s
        self._stays_away = self._chance.random() < 0.03
        kinds = (
            [self._doom_worker] * 3
            + [self._doom_on_entry] * 2
            + [self._replace_worker] * 2
            + [self._doom_coordinator] * 3
            + [self._stop_worker] * 2
            + [self._lose_connection] * 3
            + [self._part_from_coordinator, self._part_workers, self._stop_coordinator, self._join, self._leave]
        )
        how_early = self._chance.choice(_HOW_EARLY)
        for _ in range(self._chance.randint(0, self._chance.choice(_MOST_FAULTS))):
            time.at(self.over_s * self._chance.random() ** how_early, self, self._chance.choice(kinds))

    def __repr__(self) -> str:
        return self.name

    def tick(self) -> None:
        """Nothing is ever due."""

    def crash(self) -> None:
        """Faults do not crash."""

    def end(self) -> None:
        """Let nothing go wrong any more: stopped processes continue, cut networks heal."""
        self._time.doomed.clear()
        self._time.doomed_on_entry.clear()
        for worker in self._workers.values():
            self._time.continue_(worker)
        self._time.continue_(self._coordinator)
        if not self._coordinator.is_alive and not self._stays_away:
            self._coordinator.start()

    def _doom_worker(self) -> None:
        if worker := self._any_worker():
            self._time.doomed.add(worker.name)

    def _doom_on_entry(self) -> None:
        if worker := self._any_worker():
            self._time.doomed_on_entry.add(worker.name)

    def _replace_worker(self) -> None:
        self._doom_worker()
        self._later(self._join)

    def _join(self) -> None:
        self._time.count("joins")
        self._spawn()

    def _leave(self) -> None:
        if worker := self._any_worker():
            self._time.count("leaves")
            worker.leave()

    def _doom_coordinator(self) -> None:
        self._time.doomed.add(self._coordinator.name)
        self._later(self._restart)

    def _restart(self) -> None:
        if not self._coordinator.is_alive and not self._stays_away:
            self._time.count("coordinator restarts")
            self._coordinator.start()

    def _stop_worker(self) -> None:
        if worker := self._any_worker():
            self._time.count("stops")
            self._time.stop(worker)
            self._later(self._time.continue_, worker)

    def _stop_coordinator(self) -> None:
        self._time.count("coordinator stops")
        self._time.stop(self._coordinator)
        self._later(self._time.continue_, self._coordinator)

    def _lose_connection(self) -> None:
        if worker := self._any_worker():
            self._time.count("connections lost")
            self._break_connection(worker)

    def _break_connection(self, worker: WorkerProcess) -> None:
        """Let nothing pass any more; the kernel tells each end within the patience."""
        coordinator, connection = self._coordinator, worker.connection
        if connection:
            connection.is_cut = True
            mine, theirs = (self._time.now + self._patience_s * self._chance.random() for _ in range(2))
            self._time.at(mine, worker, worker.hear, connection, CLOSED)
            self._time.at(theirs, coordinator, coordinator.hear, connection, worker, CLOSED)

    def _part_from_coordinator(self) -> None:
        if worker := self._any_worker():
            until_s, is_lossy = self._part(worker.name, self._coordinator.name)
            if is_lossy or until_s - self._time.now > self._patience_s:
                self._break_connection(worker)

    def _part_workers(self) -> None:
        one, other = self._any_worker(), self._any_worker()
        if one and other and one is not other:
            self._part(one.name, other.name)

    def _part(self, one: str, other: str) -> tuple[float, bool]:
        """Part two processes; return until when, and whether what they send is lost."""
        self._time.count("partitions")
        until_s, is_lossy = self._soon(_LONGEST_S), self._chance.random() < 0.5
        self._time.cut(one, other, until_s, is_lossy=is_lossy)
        return until_s, is_lossy

    def _later(self, act: Callable[..., None], *about: object) -> None:
        self._time.at(self._soon(_LONGEST_S), self, act, *about)

    def _soon(self, longest_s: float) -> float:
        """A time that comes soon, and before the faults are over."""
        return min(self._time.now + longest_s * self._chance.random() ** 2, self.over_s)

    def _any_worker(self) -> WorkerProcess | None:
        alive = [each for each in self._workers.values() if each.is_alive]
        return self._chance.choice(alive) if alive else None
