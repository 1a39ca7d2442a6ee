"""The coordinator's decisions: who is in the group, and whether a step counts.

Messages and the time go in, decisions come out: no socket, no clock, no thread. A *plain* group takes no steps, and is
over when a member is lost. A *run* takes steps and continues: a lost member is left out of the next epoch, and a new
worker is admitted between two steps.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from phalanx.coordinator.blame import GRACE_S, LONGEST_WORDS, Culprit, Inquiry, find_stalled, locate
from phalanx.coordinator.decision import Decision, Drop, Record, Say, refuse, to
from phalanx.coordinator.epochs import Epochs
from phalanx.coordinator.plausible import Bounds
from phalanx.coordinator.record import Committed, Ended, Line, Past
from phalanx.coordinator.roster import Roster
from phalanx.coordinator.standing import describe
from phalanx.coordinator.steps import Steps
from phalanx.coordinator.terms import Terms
from phalanx.coordinator.visitors import Visitors
from phalanx.coordinator.worker import NO_RANK, Worker
from phalanx.wire import (
    Ask,
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
    Refused,
    Stacks,
    Waiting,
)

_UNDONE_S = 1.0  # how long ranks that are done wait for the others before all are asked
_PAUSE_S = 0.5  # the least time between two such questions


class Membership:
    """The coordinator's state.

    ``secret`` makes the keys of all epochs; ``past`` is what the journal says about the time before ``now``.
    """

    def __init__(self, terms: Terms, secret: bytes, past: Past | None = None, now: float = 0.0) -> None:
        past = past or Past()
        self.ended = past.ended  # why the run is over, if it is
        self.has_halted = False
        self._terms = terms
        self._roster = Roster(terms)
        self._roster.absent |= dict.fromkeys(past.names, past.step)
        self._steps = Steps(past.step, past.last)
        self._epochs = Epochs(terms, secret, past, now, self._roster, self._steps)
        self._visitors = Visitors(self._roster, past.facts)
        self._inquiry: Inquiry | None = None
        self._left_due: float | None = None
        self._next_inquiry = now

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
        return self.ended is not None and not self._roster.workers

    @property
    def is_deserted(self) -> bool:
        """Whether all members of the last group are gone; workers that are still connected wait for another group."""
        return len(self._roster.waiting) == len(self._roster.workers)

    @property
    def next_tick(self) -> float | None:
        """When ``tick`` has something to do; None if nothing is due."""
        dues = [self._inquiry.due] if self._inquiry else []
        dues += [self._left_due] if self._left_due is not None else []
        dues += [*self._epochs.dues, *self._undone_due] if self.ended is None else []
        return min(dues, default=None)

    def hear(self, connection: int, message: Message, now: float) -> list[Decision]:
        """Return what to do about a message."""
        worker = self._roster.workers.get(connection)
        if worker is None:
            return self._hear_newcomer(connection, message, now)
        worker.heard_at = now
        if self.ended is None and (fault := self._bounds(worker).fault(message)):
            return self._send_away(worker, fault, now)
        match message:
            case _ if worker.has_left:
                return []
            case Leave():
                return self._hear_leave(worker, message, now)
            case Stacks():
                return self._visitors.pass_on(connection, message)
            case Halt() if self.ended is None:
                # Also from a worker that waits: it may have been a member when it found out.
                return self._halt(self._locate(message))
            case Holds(epoch=epoch) if self.ended is None and self._epochs.is_of_step(epoch):
                worker.step = self.step  # even if the epoch is over: without this worker, no step of it was committed
                return self._form_if_possible(now)
            case _ if self._roster.is_member(worker) and self.ended is None:
                return self._hear_member(worker.rank, message, now)
            case Done() if self.ended is not None:  # another member said that the run is over, and was wrong
                return [Say((connection,), Halt(self.step, Reason.STUCK, None, f"the run is over: {self.ended}"))]
            case _:
                return []  # it belongs to an epoch that is over

    def hear_garbage(self, connection: int, why: str, now: float) -> list[Decision]:
        """Return what to do about bytes that are no message: nobody knows where the next one begins."""
        worker = self._roster.workers.get(connection)
        if worker is None:
            return [Say((connection,), Refused(why)), Drop(connection, why)]
        return self._send_away(worker, why, now, Cause.GARBLED)

    def hang_up(self, connection: int, now: float) -> list[Decision]:
        """Return what to do about a connection that closed."""
        told = self._visitors.hang_up(connection)
        worker = self._roster.workers.get(connection)
        if worker is None:
            return told
        return told + self._lose(worker, f"{worker.title} went away: its connection to the coordinator closed", now)

    def tick(self, now: float) -> list[Decision]:
        """Return what is due at this time."""
        decisions: list[Decision] = []
        if self._inquiry and now >= self._inquiry.due:
            decisions += self._conclude(self._inquiry, now)
        if any(now >= due for due in self._undone_due):
            decisions += self._inquire(Inquiry(now + GRACE_S), now)
        if self._left_due is not None and now >= self._left_due:
            leaver = min(self._roster.left, key=lambda each: each.rank)
            decisions += self._go_on(Culprit(Cause.LEFT, leaver.rank, f"{leaver.title} left the run"), leaver, now)
        decisions += self._form_if_possible(now)
        if self.ended is None and (shortage := self._epochs.shortage(now)):
            decisions += self._halt(shortage)
        return decisions

    def fail_to_record(self, line: Line, why: str) -> list[Decision]:
        """Return what to do about a line that could not be written to the journal: what it says does not count."""
        if isinstance(line, Committed):
            self._steps.take_back()
        words = f"the coordinator cannot write its journal: {why}; make room, and start it again on the same journal"
        halting = self._halt(Halt(self.step, Reason.UNRECORDED, None, words))
        return [decision for decision in halting if not isinstance(decision, Record)]

    # Coming and going

    def _hear_newcomer(self, connection: int, message: Message, now: float) -> list[Decision]:
        match message:
            case Hello():
                return self._hear_hello(connection, message, now)
            case Look():
                return self._hear_look(connection, now)
            case _:
                return self._visitors.hear(connection, message)

    def _hear_hello(self, connection: int, hello: Hello, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        if again := self._roster.named(hello.name):
            decisions += self._evict(again, f"{again.title} came again", now)
        worker = Worker(connection, hello, now, hello.step)
        if hello.pending is not None and self._steps.last == Commit(hello.step, hello.pending):
            worker.step += 1  # the commit of its step did not reach it
            decisions.append(Say((connection,), self._steps.last))
        if self.ended is not None:
            reason = f"the run is over ({self.ended}): start a coordinator with a new journal"
            return decisions + refuse(connection, reason)
        if objection := self._epochs.objection(worker):
            return decisions + refuse(connection, objection)
        self._roster.enter(worker)
        decisions.append(Say((connection,), Heard(self._patience_s(worker), self._stall_s(worker))))
        return decisions + self._make_room(now) + self._form_if_possible(now)

    def _make_room(self, now: float) -> list[Decision]:
        """Begin another epoch if no member can keep the run and a worker that waits can.

        This does not wait for a commit: after the last step there is none. A member that has to go comes again.
        """
        if not self._epochs.is_whole or not self._roster.lacks_keeper:
            return []
        last = self._roster.members[max(self._roster.members)]
        return self._evict(last, f"{last.title} made room for a worker that can keep the run", now)

    def _hear_leave(self, worker: Worker, leave: Leave, now: float) -> list[Decision]:
        worker.has_left = True
        if not self._roster.is_member(worker) or self.ended is not None:
            return []
        if not self._epochs.is_plain and leave.is_over:
            # The other members are leaving too. A worker that waits has nothing to do.
            return self._end(f"its workers finished it at step {self.step}") + self._part(self._roster.waiting)
        if not self._epochs.is_plain and not self._may_go_on:
            # A worker that came too late to get the state from the others has nothing to do.
            return self._end(f"all workers left it at step {self.step}") + self._part(self._roster.present)
        if others := self._roster.staying:
            # The other workers may be about to leave too. If not, all of them are told together.
            self._left_due = None if self._epochs.is_plain else now + GRACE_S
            return [Say(to(others), Left(worker.rank))]
        self._forget_questions()
        self._roster.members.clear()
        return self._form_if_possible(now)

    @property
    def _may_go_on(self) -> bool:
        """Whether a worker holds the state of the present step, or was lost with it and may come back."""
        held = [*(each.step for each in self._roster.present), *self._roster.absent.values()]
        return any(step >= self.step for step in held)

    def _part(self, workers: Iterable[Worker]) -> list[Decision]:
        return [decision for each in workers for decision in refuse(each.connection, "the run is over")]

    def _bounds(self, worker: Worker) -> Bounds:
        roster = self._roster
        rank = worker.rank if roster.is_member(worker) else NO_RANK
        return Bounds(self.epoch, roster.size, self.step, roster.most or 1, worker.step, rank)

    def _send_away(self, worker: Worker, fault: str, now: float, cause: Cause = Cause.LOST) -> list[Decision]:
        """Refuse a worker that said something that makes no sense: it would say it again if it joined again."""
        words = f"{worker.title} was sent away for what it sent: {fault}"
        told = refuse(worker.connection, f"{words}; run the same release of phalanx on every machine")
        return told + self._lose(worker, words, now, cause, may_return=False)

    def _evict(self, worker: Worker, words: str, now: float, cause: Cause = Cause.LOST) -> list[Decision]:
        told: list[Decision] = [Say((worker.connection,), Evict(words)), Drop(worker.connection, words)]
        return told + self._lose(worker, words, now, cause, may_return=cause is not Cause.RAISED)

    def _lose(
        self, worker: Worker, words: str, now: float, cause: Cause = Cause.LOST, *, may_return: bool = True
    ) -> list[Decision]:
        """Continue without a worker that is gone."""
        self._roster.workers.pop(worker.connection, None)
        if may_return and not worker.has_left:
            self._roster.absent[worker.hello.name] = self._steps.latest_of(worker)
        if worker.has_left or not self._roster.is_member(worker):
            return []
        if self.ended is not None and not self.has_halted:
            return self._part(self._roster.staying)  # who waits for this one would wait in vain
        del self._roster.members[worker.rank]
        return self._go_on(Culprit(cause, worker.rank, words), worker, now)

    def _go_on(self, culprit: Culprit, worker: Worker, now: float) -> list[Decision]:
        """End this epoch because of a worker, and begin the next, if that is possible."""
        self._forget_questions()
        return self._epochs.revoke(culprit.at(worker.whereabouts)) + self._form_if_possible(now)

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
                return self._hear_done(rank, message, now)
            case Waiting(epoch=self.epoch):
                return self._hear_waiting(rank, message, now)
            case Failed(epoch=self.epoch) if self._epochs.is_whole:
                return self._hear_accusation(rank, message, now)
            case _:
                pass  # it belongs to an epoch that is over
        return []

    def _hear_waiting(self, rank: int, waiting: Waiting, now: float) -> list[Decision]:
        """Note what a rank waits for. If that was not an answer to a question, ask all the other ranks too."""
        self._roster.members[rank].answer(waiting, now)
        if self._inquiry:
            self._inquiry.waits[rank] = waiting
        elif waiting.words and self._epochs.is_whole and now >= self._next_inquiry:
            return self._inquire(Inquiry(now + GRACE_S, waits={rank: waiting}), now)
        return []

    def _hear_done(self, rank: int, done: Done, now: float) -> list[Decision]:
        outcome = self._steps.hear(rank, done, len(self._roster.members), now)
        if isinstance(outcome, Culprit):
            words = outcome.at(self._roster.members[outcome.rank].whereabouts).words
            return self._halt(Halt(self.step, Reason.DIVERGED, outcome.rank, words))
        if outcome is None:
            return []
        self._epochs.fruitless = 0
        self._epochs.committed_in = self.epoch
        self._roster.benched.clear()
        self._roster.forget_outdated(self.step)
        for member in self._roster.members.values():
            member.step = self.step
        line = Committed(self.epoch, outcome.step, outcome.digest, done.loss)
        decisions: list[Decision] = [Record(line), Say(to(self._roster.staying), outcome)]
        if self._roster.has_room_for_waiting:
            self._forget_questions()
            decisions += self._epochs.form(self._roster.candidates(self.step, is_plain=False))
            return decisions
        return decisions + self._make_room(now)

    def _hear_accusation(self, rank: int, said: Failed, now: float) -> list[Decision]:
        if said.cause in (Cause.DISAGREED, Cause.GARBLED, Cause.RAISED):
            return self._condemn(Culprit(said.cause, said.rank, said.words), now)
        if said.cause is Cause.DIED and (worker := self._roster.members.get(said.rank)):
            # Its connection will close only when the kernel has freed its memory.
            return [
                Drop(worker.connection, "its process died"),
                *self._lose(worker, said.words, now, may_return=False),
            ]
        if leaver := next((each for each in self._roster.left if each.rank == said.rank), None):
            words = f"{leaver.title} left the group, and rank {rank} needed it"
            return self._go_on(Culprit(Cause.LEFT, said.rank, words), leaver, now)
        if self._inquiry and self._inquiry.said:
            return []
        return self._inquire(Inquiry(now + GRACE_S, rank, said), now)

    def _condemn(self, culprit: Culprit, now: float) -> list[Decision]:
        """End a plain group; let a run continue without the culprit, unless ranks disagree on what to do."""
        worker = self._roster.members[culprit.rank]
        if self._epochs.is_plain:
            return self._go_on(culprit, worker, now)
        if culprit.cause is Cause.DISAGREED:
            words = culprit.at(worker.whereabouts).words
            return self._halt(Halt(self.step, Reason.DIVERGED, culprit.rank, words))
        self._roster.benched.add(worker.hello.name)
        return self._evict(worker, culprit.words, now, culprit.cause)

    def _hear_look(self, connection: int, now: float) -> list[Decision]:
        if self._inquiry:
            if connection not in self._inquiry.lookers:
                self._inquiry.lookers.append(connection)
            return []
        return self._inquire(Inquiry(now + GRACE_S, lookers=[connection]), now)

    def _inquire(self, inquiry: Inquiry, now: float) -> list[Decision]:
        """Ask all workers what they wait for, and decide when they have had time to answer."""
        if self._inquiry:
            inquiry.lookers = self._inquiry.lookers
        self._inquiry = inquiry
        self._next_inquiry = now + _PAUSE_S
        asked = [each for each in self._roster.present if inquiry.lookers or self._roster.is_member(each)]
        for worker in asked:
            if worker.rank not in inquiry.waits:
                worker.ask(now)
        return [Say(to(asked), Ask())]

    def _forget_questions(self) -> None:
        """Drop what was asked about an epoch that is over; clients that look still get their answer."""
        self._left_due = None
        if self._inquiry:
            self._inquiry = Inquiry(self._inquiry.due, lookers=self._inquiry.lookers) if self._inquiry.lookers else None

    def _conclude(self, inquiry: Inquiry, now: float) -> list[Decision]:
        self._inquiry = None
        decisions: list[Decision] = []
        if inquiry.lookers:
            status = describe(self._epochs, self._roster, self._steps, ended=self.ended, waits=inquiry.waits, now=now)
            decisions.append(Say(tuple(inquiry.lookers), status))
        culprit = (inquiry.culprit() or self._find_stalled(inquiry, now)) if self._epochs.is_whole else None
        return decisions + (self._condemn(culprit, now) if culprit else [])

    @property
    def _undone_due(self) -> list[float]:
        """When to ask all workers because some have been done with the step for a while and others are not."""
        if self._inquiry or not self._steps.done_at or not self._epochs.is_whole:
            return []
        return [max(min(self._steps.done_at.values()) + _UNDONE_S, self._next_inquiry)]

    def _find_stalled(self, inquiry: Inquiry, now: float) -> Culprit | None:
        """Return a member that does nothing while others wait for it; ranks that are done wait for the others."""
        members, done_at = self._roster.members, self._steps.done_at
        waits = {rank: dict(zip(each.ranks, each.waited_s, strict=False)) for rank, each in inquiry.waits.items()}
        for rank, since in done_at.items():
            waits[rank] = {other: now - since for other in members if other not in done_at}
        idle_s = {rank: each.idle_s(now) for rank, each in members.items() if rank not in done_at}
        return find_stalled(waits, idle_s, {rank: self._stall_s(each) for rank, each in members.items()})

    def _patience_s(self, worker: Worker) -> float:
        return self._terms.patience_s if worker.hello.patience_s is None else worker.hello.patience_s

    def _stall_s(self, worker: Worker) -> float:
        return self._terms.stall_s if worker.hello.stall_s is None else worker.hello.stall_s

    def _locate(self, halt: Halt) -> Halt:
        """Return a worker's Halt with words that also say which process its rank is, if it is of this epoch."""
        worker = None if halt.rank is None or halt.epoch != self.epoch else self._roster.members.get(halt.rank)
        return replace(halt, words=locate(halt.words, worker.rank, worker.whereabouts)) if worker else halt

    def _halt(self, halt: Halt) -> list[Decision]:
        """Stop all workers at the same step with one message."""
        self.has_halted = True
        told: list[Decision] = [Say(to(self._roster.workers.values()), halt)]
        return self._end(halt.words) + told

    def _end(self, words: str) -> list[Decision]:
        self.ended = words[:LONGEST_WORDS]
        self._forget_questions()
        return [Record(Ended(self.ended))]
