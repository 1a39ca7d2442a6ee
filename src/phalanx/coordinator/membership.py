"""Who is in the group and whether a step counts, decided: messages and time go in, decisions come out.

No socket, no clock, no thread. A *plain* group takes no steps: when a member is lost it is over. A *run* takes steps
and lives on: a member that is lost is left out of the next epoch, one that comes is admitted between two steps.
"""

from phalanx.coordinator.blame import GRACE_S, LONGEST_WORDS, Inquiry, Verdict
from phalanx.coordinator.decision import Decision, Drop, Record, Say, refuse, to
from phalanx.coordinator.epochs import Epochs
from phalanx.coordinator.record import Committed, Ended, Line, Past
from phalanx.coordinator.roll import Roll
from phalanx.coordinator.standing import describe
from phalanx.coordinator.steps import Steps
from phalanx.coordinator.terms import Terms
from phalanx.coordinator.worker import Worker
from phalanx.wire import (
    Ask,
    Beat,
    Cause,
    Commit,
    Done,
    Evict,
    Failed,
    Halt,
    Heard,
    Hello,
    Holds,
    Leave,
    Left,
    Look,
    Message,
    Reason,
    Waiting,
    Wonder,
)


class Membership:
    """The coordinator's state.

    ``secret`` makes the keys of all epochs; ``past`` is what the journal says of the time before ``now``.
    """

    def __init__(self, terms: Terms, secret: bytes, past: Past | None = None, now: float = 0.0) -> None:
        past = past or Past()
        self.ended = past.ended  # why the run is over, if it is
        self.has_halted = False
        self._terms = terms
        self._roll = Roll(terms)
        self._steps = Steps(past.step, past.last)
        self._epochs = Epochs(terms, secret, past, now, self._roll, self._steps)
        self._inquiry: Inquiry | None = None
        self._left_due: float | None = None
        self._next_scan = now

    @property
    def epoch(self) -> int:
        """The number of the present epoch, or of the last one."""
        return self._epochs.number

    @property
    def step(self) -> int:
        """The step that the run is at."""
        return self._steps.step

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and nobody is here any more."""
        return self.ended is not None and not self._roll.workers

    @property
    def is_deserted(self) -> bool:
        """Whether everybody who was in a group is gone; who is still here only waits for another."""
        return len(self._roll.waiting) == len(self._roll.workers)

    @property
    def next_tick(self) -> float | None:
        """When ``tick`` has something to do, if ever."""
        dues = [self._next_scan] if self._roll.workers else []
        dues += [self._inquiry.due] if self._inquiry else []
        dues += [self._left_due] if self._left_due is not None else []
        dues += self._epochs.dues if self.ended is None else []
        return min(dues, default=None)

    def hear(self, connection: int, message: Message, now: float) -> list[Decision]:
        """What follows from a message."""
        worker = self._roll.workers.get(connection)
        if worker is None:
            match message:
                case Hello():
                    return self._hear_hello(connection, message, now)
                case Look():
                    return self._hear_look(connection, now)
                case _:
                    return refuse(connection, "say hello first")
        worker.heard_at = now
        match message:
            case Beat():
                return [Say((connection,), message)]
            case Leave():
                return self._hear_leave(worker, now)
            case Halt() if self.ended is None:
                return self._halt(message)  # also from who waits: it may have been a member when it found out
            case Holds(epoch=self.epoch) if self.ended is None:
                worker.step = self.step  # even if the epoch is over: no step of it counted without this worker
                return self._form_if_possible(now)
            case _ if self._roll.is_member(worker) and self.ended is None:
                return self._hear_member(worker.rank, message, now)
            case _:
                return []  # void: it belongs to an epoch that is over

    def hang_up(self, connection: int, now: float) -> list[Decision]:
        """What follows when a connection closed."""
        worker = self._roll.workers.get(connection)
        if worker is None:
            return []
        return self._lose(worker, f"{worker.title} went away: its connection to the coordinator closed", now)

    def tick(self, now: float) -> list[Decision]:
        """What follows from the time."""
        decisions: list[Decision] = []
        if self._inquiry and now >= self._inquiry.due:
            decisions += self._conclude(self._inquiry, now)
        if now >= self._next_scan:
            self._next_scan = now + self._terms.interval_s
            silent = [(each, each.silence(now)) for each in self._roll.take_silent(now)]  # named before ranks change
            for worker, words in silent:
                decisions += self._evict(worker, words, now)
        if self._left_due is not None and now >= self._left_due:
            rank = min(each.rank for each in self._roll.left)
            decisions += self._go_on(Verdict(Cause.LEFT, rank, f"rank {rank} left the run"), now)
        decisions += self._form_if_possible(now)
        if self.ended is None and (shortage := self._epochs.shortage(now)):
            decisions += self._halt(shortage)
        return decisions

    def fail_to_record(self, line: Line, why: str) -> list[Decision]:
        """What follows when a line of the journal could not be written: what it says does not count."""
        if isinstance(line, Committed):
            self._steps.take_back()
        words = f"the coordinator cannot write its journal: {why}; make room, and start it again on the same journal"
        halting = self._halt(Halt(self.step, Reason.UNRECORDED, None, words))
        return [decision for decision in halting if not isinstance(decision, Record)]

    # Coming and going

    def _hear_hello(self, connection: int, hello: Hello, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        if again := self._roll.named(hello.name):
            decisions += self._evict(again, f"{again.title} came again", now)
        worker = Worker(connection, hello, now, hello.step)
        if hello.pending is not None and self._steps.last == Commit(hello.step, hello.pending):
            worker.step += 1  # it was done when that step was committed, and only lacks the word
            decisions.append(Say((connection,), self._steps.last))
        if self.ended is not None:
            reason = f"the run is over ({self.ended}): start a coordinator with a new journal"
            return decisions + refuse(connection, reason)
        if objection := self._epochs.objection(worker):
            return decisions + refuse(connection, objection)
        self._roll.enter(worker)
        decisions.append(Say((connection,), Heard(self._terms.patience_s)))
        return decisions + self._form_if_possible(now)

    def _hear_leave(self, worker: Worker, now: float) -> list[Decision]:
        worker.has_left = True
        if not self._roll.is_member(worker) or self.ended is not None:
            return []
        if not self._epochs.is_plain and not any(each.step == self.step for each in self._roll.present):
            # Who came too late to get the state from them has nothing to do.
            goodbyes = [
                decision for each in self._roll.present for decision in refuse(each.connection, "the run is over")
            ]
            return self._end(f"all workers left it at step {self.step}") + goodbyes
        if others := self._roll.staying:
            # The others of a run may be about to leave too; if not, they need not find out one by one.
            self._left_due = None if self._epochs.is_plain else now + GRACE_S
            return [Say(to(others), Left(worker.rank))]
        self._forget_questions()
        self._roll.members.clear()
        return self._form_if_possible(now)

    def _evict(self, worker: Worker, words: str, now: float, cause: Cause = Cause.LOST) -> list[Decision]:
        told: list[Decision] = [Say((worker.connection,), Evict(words)), Drop(worker.connection, words)]
        return told + self._lose(worker, words, now, cause)

    def _lose(self, worker: Worker, words: str, now: float, cause: Cause = Cause.LOST) -> list[Decision]:
        """Go on without a worker that is not there any more."""
        self._roll.workers.pop(worker.connection, None)
        if worker.has_left or not self._roll.is_member(worker):
            return []
        del self._roll.members[worker.rank]
        return self._go_on(Verdict(cause, worker.rank, words), now)

    def _go_on(self, verdict: Verdict, now: float) -> list[Decision]:
        """End this epoch and begin the next, if that is possible."""
        self._forget_questions()
        return self._epochs.revoke(verdict) + self._form_if_possible(now)

    def _form_if_possible(self, now: float) -> list[Decision]:
        if self.ended is not None:
            return []
        decisions = self._epochs.form_if_possible(now)
        if not decisions:
            return []
        self._forget_questions()
        fruitless = self._epochs.is_fruitless()
        return self._halt(fruitless) if fruitless else decisions

    # Taking part

    def _hear_member(self, rank: int, message: Message, now: float) -> list[Decision]:
        match message:
            case Done(epoch=self.epoch) if self._epochs.is_whole:
                return self._hear_done(rank, message)
            case Waiting(epoch=self.epoch) if self._inquiry:
                self._inquiry.waits[rank] = message
            case Wonder() if not self._inquiry and self._epochs.is_whole:
                return self._inquire(Inquiry(now + GRACE_S))
            case Failed(epoch=self.epoch) if self._epochs.is_whole:
                return self._hear_accusation(rank, message, now)
            case _:
                pass  # void
        return []

    def _hear_done(self, rank: int, done: Done) -> list[Decision]:
        outcome = self._steps.hear(rank, done, len(self._roll.members))
        if isinstance(outcome, Halt):
            return self._halt(outcome)
        if outcome is None:
            return []
        self._epochs.fruitless = 0
        self._roll.benched.clear()
        for member in self._roll.members.values():
            member.step = self.step
        line = Committed(self.epoch, outcome.step, outcome.digest, done.loss)
        decisions: list[Decision] = [Record(line), Say(to(self._roll.staying), outcome)]
        if self._roll.has_room_for_waiting:
            self._forget_questions()
            decisions += self._epochs.form(self._roll.candidates(self.step, is_plain=False))
        return decisions

    def _hear_accusation(self, rank: int, said: Failed, now: float) -> list[Decision]:
        if said.cause in (Cause.DISAGREED, Cause.RAISED):
            return self._condemn(Verdict(said.cause, said.rank, said.words), now)
        if any(each.rank == said.rank for each in self._roll.left):
            words = f"rank {said.rank} left the group, and rank {rank} needed it"
            return self._go_on(Verdict(Cause.LEFT, said.rank, words), now)
        if self._inquiry and self._inquiry.said:
            return []
        return self._inquire(Inquiry(now + GRACE_S, rank, said))

    def _condemn(self, verdict: Verdict, now: float) -> list[Decision]:
        """A plain group is over; a run goes on without the culprit, unless ranks disagree on what to do."""
        culprit = self._roll.members.get(verdict.rank)
        if self._epochs.is_plain or culprit is None:
            return self._go_on(verdict, now)
        if verdict.cause is Cause.DISAGREED:
            return self._halt(Halt(self.step, Reason.DIVERGED, verdict.rank, verdict.words))
        self._roll.benched.add(culprit.hello.name)
        return self._evict(culprit, verdict.words, now, verdict.cause)

    def _hear_look(self, connection: int, now: float) -> list[Decision]:
        asked = [] if self._inquiry else self._inquire(Inquiry(now + GRACE_S))
        assert self._inquiry
        self._inquiry.lookers.append(connection)
        return asked

    def _inquire(self, inquiry: Inquiry) -> list[Decision]:
        """Ask everybody what they wait for, and decide when they have had time to answer."""
        if self._inquiry:
            inquiry.lookers = self._inquiry.lookers
        self._inquiry = inquiry
        return [Say(to(self._roll.staying), Ask())]

    def _forget_questions(self) -> None:
        """What is open in an epoch that is over does not matter, but who looks still wants to know."""
        self._left_due = None
        if self._inquiry:
            self._inquiry = Inquiry(self._inquiry.due, lookers=self._inquiry.lookers) if self._inquiry.lookers else None

    def _conclude(self, inquiry: Inquiry, now: float) -> list[Decision]:
        self._inquiry = None
        decisions: list[Decision] = []
        if inquiry.lookers:
            status = describe(self._epochs, self._roll, self._steps, ended=self.ended, waits=inquiry.waits, now=now)
            decisions.append(Say(tuple(inquiry.lookers), status))
        verdict = inquiry.verdict() if self._epochs.is_whole else None
        return decisions + (self._condemn(verdict, now) if verdict else [])

    def _halt(self, halt: Halt) -> list[Decision]:
        """Stop everybody, at the same step, with one message."""
        self.has_halted = True
        told: list[Decision] = [Say(to(self._roll.workers.values()), halt)]
        return self._end(halt.words) + told

    def _end(self, words: str) -> list[Decision]:
        self.ended = words[:LONGEST_WORDS]
        self._forget_questions()
        return [Record(Ended(self.ended))]
