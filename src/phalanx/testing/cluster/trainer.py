"""A model of the main thread that trains, in a worker's process of a simulated cluster."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from phalanx.coordinator.participant import Abandon, Apply, Begin, Move, Participant
from phalanx.coordinator.record import Committed
from phalanx.testing.cluster.frames import AskState, Frame, Gone, Piece, State
from phalanx.testing.cluster.laws import Laws, Violation
from phalanx.testing.cluster.stage import Job, Said, Stage, Takes
from phalanx.wire import Cause, Commit, Failed, Hello, Reason, Waiting, Welcome


class SimulatedTrainer(ABC):
    """Takes step after step with the others, and leaves when all are taken.

    Weights are a chain of hashes, so that anything that enters them twice, or from elsewhere, shows for ever.
    """

    def __init__(self, name: str, stage: Stage, laws: Laws, job: Job, peers: Mapping[str, "SimulatedTrainer"]) -> None:
        self.name = name
        self.is_alive = True
        self.step = 0
        self._weights = b"initial"
        self._result: bytes | None = None  # of this step, until it is known whether it counts
        self._made_in = 0  # the epoch of the result
        self._stage, self._laws, self._job, self._peers = stage, laws, job, peers
        self._participant = Participant(Hello(name, (), 0, None, None, "", name=name, lanes=job.lanes))
        self._welcome: Welcome | None = None  # of the epoch that the main thread is in
        self._last_epoch = self._rank = 0
        self._attempt = 0  # what belongs to an earlier one is over
        self._waits_for: tuple[int, ...] = ()
        self._waits_since = 0.0
        self._gone: set[int] = set()
        self._pieces: dict[int, dict[int, Piece]] = {}  # by step and rank
        self._early: list[Frame] = []  # of epochs that have not begun here

    @abstractmethod
    def tick(self) -> None:
        """Do what is due now."""

    @abstractmethod
    def crash(self) -> None:
        """End without a word."""

    @abstractmethod
    def leave(self) -> None:
        """Go, on purpose."""

    @abstractmethod
    def _do(self, moves: Iterable[Move]) -> None:
        """Carry out what ``Participant`` decided."""

    @abstractmethod
    def _tell(self, said: Said) -> None:
        """Send something to the coordinator, if there is a connection."""

    def holds(self, commits: Sequence[Committed]) -> bool:
        """Whether this worker has the state after these steps, or can make it."""
        is_late = bool(commits) and self.step == len(commits) - 1 and self._result == commits[-1].digest
        return is_late or self.step == len(commits)

    def notice(self, move: Begin | Abandon | Apply) -> None:
        """The main thread finds out what the other has decided."""
        match move:
            case Begin(welcome=welcome):
                self._begin(welcome)
            case Apply(commit=commit):
                self._apply(commit)
            case Abandon():
                self._welcome, self._waits_for = None, ()
                self._attempt += 1

    def _begin(self, welcome: Welcome) -> None:
        if welcome.epoch <= self._last_epoch or welcome.step < self.step:
            raise Violation(f"{self.name} is in epoch {self._last_epoch} at step {self.step}, and was sent {welcome}")
        self._welcome, self._last_epoch, self._rank = welcome, welcome.epoch, welcome.rank
        self._result, self._waits_for, self._gone = None, (), set()
        self._pieces.clear()
        self._attempt += 1
        if self.step == self._job.steps:
            self.leave()
            return
        if self.step < welcome.step:
            self._fetch(welcome)
        else:
            if welcome.members[welcome.rank].step < self.step:  # it came too late for the epoch before
                self._do(self._participant.hold(welcome.epoch, self.step))
            self._compute()
        early, self._early = self._early, []
        for frame in early:
            self.receive(frame)

    def _apply(self, commit: Commit) -> None:
        if self._result != commit.digest or self.step != commit.step:
            raise Violation(
                f"{self.name} is at step {self.step} with the result {self._result!r}, and was sent {commit}"
            )
        self._weights = _hash(self._weights, self._result)
        self.step += 1
        self._result = None
        self._laws.check_weights(self.name, self.step, self._weights)
        if self.step == self._job.steps:
            self.leave()
        elif self._welcome:
            self._compute()

    def _fetch(self, welcome: Welcome) -> None:
        holders = [each for each in welcome.members if each.step == welcome.step]
        source = self._stage.pick(holders)
        self._send(source.host, AskState(welcome.epoch, self._rank))
        self._wait_for((source.rank,))

    def _compute(self) -> None:
        self._attempt += 1
        self._stage.post(Takes.COMPUTING, ("compute", self.name), self, self._computed, self._attempt)

    def _computed(self, attempt: int) -> None:
        welcome = self._welcome
        if attempt != self._attempt or not welcome:
            return
        first, last = lanes = welcome.members[self._rank].lanes
        if self._job.spoiled and self._job.spoiled[0] == self.step and first <= self._job.spoiled[1] < last:
            words = f"step {self.step} is not a number"
            self._do(self._participant.halt(welcome.epoch, Reason.NON_FINITE, self._rank, words))
            return
        seed = self._weights + self.step.to_bytes(4, "big")
        values = tuple(_hash(seed, lane.to_bytes(4, "big")) for lane in range(first, last))
        piece = Piece(welcome.epoch, self.step, self._rank, lanes, values)
        self._send_all(piece)
        self._pieces.setdefault(self.step, {})[self._rank] = piece
        self._wait_for(self._missing(welcome))
        self._finish()

    def _missing(self, welcome: Welcome) -> tuple[int, ...]:
        here = self._pieces.get(self.step, {})
        return tuple(each.rank for each in welcome.members if each.rank not in here)

    def _finish(self) -> None:
        """Be done, if everything has come."""
        welcome = self._welcome
        if not welcome or self._result is not None or self._rank not in self._pieces.get(self.step, {}):
            return
        self._waits_for = self._missing(welcome)
        if self._waits_for:
            return
        pieces = self._pieces.pop(self.step)
        self._laws.check_result(self.name, welcome, self.step, pieces)
        self._result = _hash(*(value for rank in sorted(pieces) for value in pieces[rank].values))
        self._made_in = welcome.epoch
        moves = self._participant.done(welcome.epoch, 0.0, self._result)
        if not moves:
            self._result = None  # the epoch is over, so this never counts
        self._do(moves)

    # The links to the others

    def receive(self, frame: Frame) -> None:
        """Another worker sent something: what is of an epoch that is over here is refused."""
        if frame.epoch > self._last_epoch:
            self._early.append(frame)
        elif self._welcome and frame.epoch == self._welcome.epoch:
            match frame:
                case Piece():
                    self._pieces.setdefault(frame.step, {})[frame.rank] = frame
                    self._finish()
                case AskState():
                    answer = State(frame.epoch, self._rank, self.step, self._weights)
                    self._send(self._welcome.members[frame.rank].host, answer)
                case State():
                    self._take(self._welcome, frame)
                case Gone():
                    self._note_gone(frame.rank)

    def _take(self, welcome: Welcome, state: State) -> None:
        self._waits_for = ()
        self.step, self._weights = state.step, state.weights
        self._laws.check_weights(self.name, self.step, self._weights)
        self._stage.count("states fetched")
        self._do(self._participant.hold(welcome.epoch, self.step))
        self._compute()

    def _explain(self, at_least_s: float = 0.0) -> None:
        """Tell the coordinator what this worker waits for, if it has waited for ``at_least_s``."""
        waited_s = self._stage.now - self._waits_since if self._waits_for else 0.0
        if waited_s >= at_least_s:
            waiting = Waiting(
                epoch=self._last_epoch,
                ranks=self._waits_for,
                waited_s=(waited_s,) * len(self._waits_for),
                group="step" if self._waits_for else "",
                sequence=self.step,
                words=f"step {self.step}" if self._waits_for else "",
                cpu_s=self._stage.now,  # a worker that is able to answer and does not wait is computing
            )
            self._tell(waiting)

    def _wait_for(self, ranks: tuple[int, ...]) -> None:
        self._waits_for, self._waits_since = ranks, self._stage.now
        self._accuse_the_gone()
        if ranks:
            self._stage.at(self._stage.now + self._job.deadline_s, self, self._run_out, self._attempt)

    def _run_out(self, attempt: int) -> None:
        if attempt == self._attempt and self._waits_for:
            self._accuse(Cause.STALLED, self._waits_for[0])
            self._stage.at(self._stage.now + self._job.deadline_s, self, self._run_out, attempt)

    def _note_gone(self, rank: int) -> None:
        self._gone.add(rank)
        self._accuse_the_gone()

    def _accuse_the_gone(self) -> None:
        for rank in self._waits_for:
            if rank in self._gone:
                self._accuse(Cause.LOST, rank)
                return

    def _accuse(self, cause: Cause, rank: int) -> None:
        self._stage.count(f"accusations: {cause.value}")
        self._tell(Failed(self._last_epoch, cause, rank, f"rank {rank} did not send step {self.step}"))

    def _send_all(self, frame: Frame) -> None:
        for each in self._welcome.members if self._welcome else ():
            if each.host != self.name:
                self._send(each.host, frame)

    def _send(self, name: str, frame: Frame) -> None:
        peer = self._peers[name]
        self._stage.carry(self, peer, ("link", self.name, name, frame.epoch), peer.receive, frame)


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
