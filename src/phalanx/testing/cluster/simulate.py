"""A whole cluster in one thread and in virtual time: everything that can go wrong does, and all promises must hold."""

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phalanx.coordinator.terms import Terms
from phalanx.errors import ConnectError, JoinRefused
from phalanx.testing.cluster.coordinator import CoordinatorProcess
from phalanx.testing.cluster.faults import Faults
from phalanx.testing.cluster.laws import Laws, Violation
from phalanx.testing.cluster.stage import Job
from phalanx.testing.cluster.time import VirtualTime
from phalanx.testing.cluster.worker import WorkerProcess

_LANES = 8
_SIZES = (5, 3, 3, 2, 1, 0)
_LIMIT_S = 1000.0


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What happened to a simulated cluster; ``digest`` is of every event, so equal digests mean equal runs."""

    seed: int
    digest: str
    events: int
    steps: int
    """How many were committed."""
    ended: str | None
    """What the coordinator said of the end, if it lived to see it."""
    counts: Mapping[str, int]


def simulate_cluster(seed: int, *, workers: int = 4, steps: int = 20) -> ClusterReport:
    """Run a cluster with the faults of ``seed``, and report what happened.

    Violation if a promise was broken: it names the seed, and has the last events.
    """
    cluster = _Cluster(random.Random(seed), workers, steps)  # noqa: S311 - chance, not secrets
    try:
        cluster.run()
    except Exception as error:
        where = f"seed {seed}: {error!r} at {cluster.time.now:.4f} s"
        replay = f"replay with simulate_cluster({seed}, workers={workers}, steps={steps})"
        raise Violation(f"{where}; {replay}\n{cluster.time.describe()}") from error
    time, laws = cluster.time, cluster.laws
    digest = hashlib.sha256(time.trace.encode()).hexdigest()
    return ClusterReport(seed, digest, time.events, len(laws.commits), laws.ended, dict(time.counts))


class _Cluster:
    """A coordinator, workers, and what goes wrong with them."""

    def __init__(self, chance: random.Random, workers: int, steps: int) -> None:
        most = workers + chance.choice((0, 0, 2))
        patience_s, stall_s = chance.choice((1.0, 2.0, 5.0)), chance.choice((1.0, 5.0, 30.0))
        terms = Terms(minimum=chance.randint(1, workers), maximum=most, patience_s=patience_s, stall_s=stall_s)
        self._job = Job(
            steps=steps,
            lanes=_LANES,
            terms=terms,
            deadline_s=chance.choice((3.0, 8.0)),
            sizes=_SIZES,
            hosts=chance.randint(1, 3),
            is_sharing=chance.random() < 0.6,
            is_paranoid=chance.random() < 0.4,
            spoiled_step=chance.randrange(steps) if chance.random() < 0.05 else None,
        )
        self.time = VirtualTime(chance)
        self.laws = Laws(self._job)
        self._coordinator = CoordinatorProcess(self.time, self.laws, terms)
        self._workers: dict[str, WorkerProcess] = {}
        self._faults = Faults(self.time, self._coordinator, self._workers, self._spawn, patience_s)
        self._coordinator.start()
        for _ in range(workers):
            self._spawn()

    def run(self) -> None:
        """Let faults happen, then none, and judge how it ended."""
        self.time.run(self._faults.over_s)
        self._faults.end()
        must_finish = self._can_finish()
        self.time.run(_LIMIT_S)
        self._judge(must_finish=must_finish)

    def _spawn(self) -> None:
        name = f"w{len(self._workers)}"
        self._workers[name] = WorkerProcess(name, self.time, self.laws, self._job, self._coordinator, self._workers)
        self._workers[name].start()

    def _can_finish(self) -> bool:
        """Whether nothing stands in the way of the last step, now that no fault does."""
        alive = [each for each in self._workers.values() if each.is_alive]
        is_enough = len(alive) >= (self._job.terms.minimum or 1)
        return self._coordinator.is_alive and self.laws.ended is None and is_enough and self._is_held(alive)

    def _is_held(self, workers: Iterable[WorkerProcess]) -> bool:
        """Whether these workers have all of the state together."""
        held = frozenset[int]().union(*(each.holds(self.laws.commits) for each in workers))
        return len(held) == len(self._job.sizes)

    def _judge(self, *, must_finish: bool) -> None:
        for worker in self._workers.values():
            if worker.is_alive:
                raise Violation(f"{worker.name} waits for ever, at step {worker.step}")
            if self._coordinator.is_alive and isinstance(worker.ending, ConnectError):
                raise Violation(f"{worker.name} gave up on a coordinator that was there: {worker.ending}")
        self._judge_early_end()
        steps = len(self.laws.commits)
        is_spoiled = self._job.spoiled_step == steps or self.laws.is_state_lost
        # A worker that crashed may have been the last to be done: then its state is lost with it.
        is_held = self._is_held(each for each in self._workers.values() if each.ending != "crashed")
        if must_finish and is_held and steps < self._job.steps and not is_spoiled:
            raise Violation(f"only {steps} steps were taken, although nothing stood in the way: {self.laws.ended}")
        if self._coordinator.is_alive and steps and self.laws.ended is None:
            raise Violation("the coordinator waits for ever")

    def _judge_early_end(self) -> None:
        """The run does not end because the last worker leaves, if another one that has the state only lost touch."""
        steps, words = len(self.laws.commits), self.laws.ended or ""
        if steps == self._job.steps or not words.startswith("all workers left"):
            return
        for worker in self._workers.values():
            if isinstance(worker.ending, JoinRefused) and worker.has_met and worker.holds(self.laws.commits):
                raise Violation(f"the run ended although {worker.name} had its state: {words}")
