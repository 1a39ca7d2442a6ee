"""Decides when an epoch begins, with which workers, and when it ends."""

import hashlib

from phalanx.coordinator.blame import Culprit
from phalanx.coordinator.decision import Decision, Record, Say, to
from phalanx.coordinator.record import Formed, Past
from phalanx.coordinator.roster import Roster
from phalanx.coordinator.steps import Steps
from phalanx.coordinator.terms import Terms
from phalanx.coordinator.worker import Worker, describe_members
from phalanx.wire import Halt, Reason, Revoked, Welcome

_MOST_FRUITLESS = 100  # epochs in a row in which no step succeeded


class Epochs:
    """The present epoch, if there is one, and what the next epoch waits for."""

    def __init__(self, terms: Terms, secret: bytes, past: Past, now: float, roster: Roster, steps: Steps) -> None:
        self.number = past.epoch
        self.lanes = past.lanes  # None for a plain group
        self.fruitless = 0
        self.committed_in = past.epoch  # the epoch of the last commit, as far as is known
        self._terms = terms
        self._secret = secret
        self._roster = roster
        self._steps = steps
        self._is_revoked = False
        self._awaited = past.names  # the members before a restart of the coordinator, who will connect again
        self._awaited_until = now + terms.patience_s
        self._first_until = None if past.epoch or terms.first is None else now + terms.rejoin_s
        self._short_since = now if past.epoch else None  # since when a run cannot go on

    @property
    def is_plain(self) -> bool:
        """Whether this is a group that takes no steps, as far as the coordinator knows."""
        return self.lanes is None

    @property
    def is_whole(self) -> bool:
        """Whether there is an epoch that is not revoked."""
        return bool(self._roster.members) and not self._is_revoked

    def is_of_step(self, epoch: int) -> bool:
        """Whether this is the present epoch, or one before it since which no step was committed."""
        return epoch == self.number or self.committed_in < epoch < self.number

    @property
    def dues(self) -> list[float]:
        """The times at which something is due."""
        dues = [self._awaited_until] if self._awaited else []
        dues += [] if self._first_until is None else [self._first_until]
        return dues if self._short_since is None else [*dues, self._short_since + self._terms.rejoin_s]

    def objection(self, worker: Worker) -> str | None:
        """Return why a worker cannot be in any later epoch, or None if it can."""
        lanes, step = worker.hello.lanes or "no", self._steps.step
        if self.is_plain and self.is_whole and len(self._roster.present) >= (self._roster.most or 1):
            words = f"the group is complete: all its {self._roster.most} workers are here"
            return f"{words}; a program that connects again has to close its group first"
        if not self.is_plain and worker.hello.lanes != self.lanes:
            return f"you train with {lanes} lanes, this run with {self.lanes}: start all with the same config"
        if not self.is_plain and worker.step > step:
            words = f"you hold step {worker.step}, but this run is at step {step}"
            return f"{words}: start from its checkpoint, or with a new journal"
        return self._roster.objection(worker.hello)

    def shortage(self, now: float) -> Halt | None:
        """Return why a run with too few workers gives up, and what to do; None if it does not give up."""
        if self._short_since is None or now < self._short_since + self._terms.rejoin_s:
            return None
        here, least, step = len(self._roster.present), self._roster.least or 1, self._steps.step
        waited = f"{self._terms.rejoin_s:g} s"
        reason, words = Reason.STATE_LOST, f"no worker that holds the state of step {step} came within {waited}"
        if here < least:
            reason, words = Reason.STUCK, f"there were {here} of at least {least} workers for {waited} at step {step}"
        words += ": start all workers again from the last checkpoint, with a new journal"
        return Halt(step, reason, None, words)

    def form_if_possible(self, now: float) -> list[Decision]:
        """Begin an epoch, unless there is one already or it has to wait for a worker."""
        if self.is_whole:
            return []
        if now >= self._awaited_until:
            self._awaited = frozenset()
        workers = self._roster.candidates(self._steps.step, is_plain=self.is_plain)
        if self._first_until is not None and now >= self._first_until:
            self._first_until = None
        least = self._roster.least if self._first_until is None else self._terms.first
        is_early = not self._awaited <= {each.hello.name for each in workers}
        is_held = self.is_plain or any(each.step == self._steps.step for each in workers)
        if least is None or len(workers) < least or is_early or not is_held:
            if not self.is_plain and self._short_since is None:
                self._short_since = now
            return []
        return self.form(workers)

    def form(self, workers: list[Worker]) -> list[Decision]:
        """Begin an epoch with these workers."""
        step = self._steps.step
        if self.is_plain:
            step = max(each.step for each in workers)  # a run that has not begun starts where a worker is
            for each in self._roster.members.values():
                each.has_left = True  # it has finished with the last group, but is still connected
        self._steps.begin(step)
        self.lanes = workers[0].hello.lanes
        self.number += 1
        self.fruitless += 1
        self._is_revoked, self._short_since, self._first_until, self._awaited = False, None, None, frozenset()
        ranks = self._roster.seat(workers)
        decisions: list[Decision] = []
        if self.lanes is not None:
            names = tuple(each.hello.name for each in ranks.values())
            decisions.append(Record(Formed(self.number, self._steps.step, self.lanes, names)))
        members = describe_members(ranks, self.lanes)
        key = hashlib.sha256(self._secret + self.number.to_bytes(8, "big")).digest()[:16]
        for rank, worker in ranks.items():
            decisions.append(Say((worker.connection,), Welcome(self.number, rank, key, members, self._steps.step)))
        return decisions

    def revoke(self, culprit: Culprit) -> list[Decision]:
        """End the epoch, unless it has ended already."""
        if self._is_revoked:
            return []
        self._is_revoked = True
        return [Say(to(self._roster.staying), Revoked(self.number, culprit.cause, culprit.rank, culprit.words))]

    def is_fruitless(self) -> Halt | None:
        """Return why a run gives up although it has workers; None if it does not give up."""
        if self.is_plain or self.fruitless <= _MOST_FRUITLESS:
            return None
        words = (
            f"step {self._steps.step} did not succeed in {_MOST_FRUITLESS} epochs: look at the network between the "
            "workers, then start all of them again from the last checkpoint, with a new journal"
        )
        return Halt(self._steps.step, Reason.STUCK, None, words)
