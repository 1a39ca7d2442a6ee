"""The main thread of a simulated worker: it trains as an ``Engine`` over an ``ElasticRun`` does."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from phalanx.buffers import LaneShares, plan_lanes
from phalanx.coordinator.participant import Abandon, Apply, Begin
from phalanx.coordinator.record import Committed
from phalanx.elastic import (
    Compare,
    CopyWeights,
    EntryMove,
    Follow,
    Form,
    HandOver,
    Hold,
    Holding,
    Learn,
    Settle,
    Stance,
    StartAlike,
    StepProgress,
    cut_copy,
    find_lost_state,
    may_write,
    plan_entry,
)
from phalanx.testing.cluster.laws import Laws, Violation
from phalanx.testing.cluster.links import EpochOver, LinkedWorker, Main, Waits
from phalanx.testing.cluster.replica import SimulatedReplica, Sum, add_up, hash_of
from phalanx.testing.cluster.stage import Job, Stage, Takes
from phalanx.wire import Commit, Reason, Welcome

T = TypeVar("T")


class SimulatedTrainer(LinkedWorker):
    """Takes step after step with the others, and leaves when all are taken.

    What it decides is what the engine decides, with the same code of ``phalanx.elastic``.
    """

    def __init__(self, name: str, stage: Stage, laws: Laws, job: Job, peers: Mapping[str, "SimulatedTrainer"]) -> None:
        super().__init__(name, stage, laws, job, peers)
        self.replica = SimulatedReplica(len(job.sizes), is_sharing=job.is_sharing)
        self._members: Mapping[str, SimulatedTrainer] = peers
        self._progress: StepProgress[bytes, bytes] = StepProgress()
        self._shares: LaneShares
        self._holding: Holding
        self._sums: tuple[Sum, ...] = ()  # of this epoch
        self._state_arrived: dict[int, bytes] = {}
        self.has_met = False  # whether its weights are those of others
        self._told: int | None = None  # the last step whose report the caller has
        self._pending: bytes | None = None  # the digest of a step, until it is known whether it counts
        self._made_in = 0  # the epoch in which it was made
        self._upcoming: Welcome | None = None
        self._resume()

    @abstractmethod
    def leave(self) -> None:
        """Go, on purpose."""

    @property
    def step(self) -> int:
        """The next step."""
        return self.replica.step

    def holds(self, commits: Sequence[Committed]) -> frozenset[int]:
        """Return the blocks of which this worker has the state after these steps, or can make it."""
        is_late = bool(commits) and self.step == len(commits) - 1 and self._pending == commits[-1].digest
        return self.replica.held if is_late or self.step == len(commits) else frozenset()

    def notice(self, move: Begin | Abandon | Apply) -> None:
        """The main thread finds out what the other has decided."""
        match move:
            case Begin(welcome=welcome):
                if welcome.epoch <= self._last_epoch or welcome.step < self.step:
                    words = f"{self.name} is in epoch {self._last_epoch} at step {self.step}"
                    raise Violation(f"{words}, and was sent {welcome}")
                self._upcoming = welcome
                if self._waits is Waits.WORD:
                    self._resume()
            case Apply(commit=commit):
                if self._pending != commit.digest or self.step != commit.step:
                    words = f"{self.name} is at step {self.step} with the digest {self._pending!r}"
                    raise Violation(f"{words}, and was sent {commit}")
                self._resume(commit)
            case Abandon():
                self._welcome = self._upcoming = None
                if self._waits is Waits.PARCELS:
                    self._interrupt()  # who computes goes on to the end of its lanes

    def _live(self) -> Main[None]:
        yield Waits.WORD
        self._begin()
        yield from self._until_done(self._do_nothing, is_in=False)
        while self._missed() is not None or self.step < self._job.steps:
            step = yield from self._until_done(self._take_step)
            self._laws.check_told(self.name, self._told, step)
            self._told = step
            if self._rank == 0:
                self._stage.post(Takes.WRITING, ("write", self.name), self, self._write, self._last_epoch)
            if step % self._job.evaluates_every == 0:
                yield from self._until_done(self._find)
        self.leave()

    def _begin(self) -> None:
        assert self._upcoming, "a worker begins an epoch that it was told of"
        welcome, self._upcoming = self._upcoming, None
        self._join_epoch(welcome)

    def _until_done(self, act: Callable[[], Main[T]], *, is_in: bool = True) -> Main[T]:
        """Act together with the other members, once more in every new epoch, until it succeeds."""
        is_over = False
        while True:
            if is_over:
                if self._upcoming is None:
                    yield Waits.WORD
                self._begin()
                is_in = is_over = False
            try:
                if not is_in:
                    yield from self._enter()
                    is_in = True
                return (yield from act())
            except EpochOver:
                if is_in:
                    self._progress.keep(self._sums if len(self._shares.by_rank) > 1 else ())
                is_over = True

    def _do_nothing(self) -> Main[None]:
        yield from ()

    def _missed(self) -> int | None:
        """Return the last step if the members took it without this one, and its caller was not told."""
        return self.step - 1 if self.step and self.step - 1 != self._told else None

    def _write(self, epoch: int) -> None:
        """Write something of ``epoch`` into the run directory, as a thread of this worker does, if it still may."""
        if may_write(self._stage.written_in, epoch):
            self._laws.check_written(self.name, self._stage.written_in, epoch)
            self._stage.written_in = epoch
        else:
            self._stage.count("writes fenced off")

    # Entering an epoch

    def _enter(self) -> Main[None]:
        welcome = self._welcome
        if not welcome:
            raise EpochOver
        job, replica = self._job, self.replica
        self._progress.begin_epoch()
        stances: list[Stance] = yield from self._gather("stance", replica.describe(self._progress))
        if lost := find_lost_state(stances, len(job.sizes)):
            members = {each.host: self._members[each.host] for each in welcome.members}
            self._laws.check_lost(welcome.step, lost, {n: m.replica for n, m in members.items() if m.has_met})
            self._stage.count("states lost")
            yield from self._halt(Reason.STATE_LOST, f"the state of the blocks {lost} is lost")
        hosts = job.share_hosts([each.host for each in welcome.members])
        for move in plan_entry(self._rank, stances, job.sizes, hosts, job.lanes):
            yield from self._make_entry_move(move, welcome, stances)
        self._laws.check_entered(self.name, welcome, replica, self._holding)

    def _make_entry_move(self, move: EntryMove, welcome: Welcome, stances: Sequence[Stance]) -> Main[None]:
        replica = self.replica
        match move:
            case StartAlike():
                yield from self._copy_weights((0,), self._others() if self._rank == 0 else (self._rank,))
                self.has_met = True
            case Settle():
                replica.is_new = False
            case CopyWeights(holders=holders, newcomers=newcomers):
                yield from self._copy_weights(holders, newcomers)
            case HandOver():
                yield from self._hand_over(move)
            case Follow(source=source, is_whole=is_whole):
                replica.follow(stances[source], is_whole=is_whole)
                self.has_met = True
                self._stage.count("states fetched")
                self._progress.clear()
            case Learn(source=source, blocks=blocks):
                self._learn(stances[source], blocks, welcome)
            case Form(shares=shares, holding=holding, is_whole=is_whole):
                yield from self._form(shares, holding, is_whole=is_whole)
            case Compare():
                yield from self._compare()
            case Hold(holding=holding):
                replica.hold(holding, self._rank)

    def _copy_weights(self, holders: Sequence[int], newcomers: Sequence[int]) -> Main[None]:
        parts = cut_copy(len(self.replica.content), holders)
        if self._rank in newcomers:
            got = yield from self._exchange("weights", {}, holders)
            for rank, data in got.items():
                self.replica.write(parts[rank], data)
        else:
            data = self.replica.content[parts[self._rank]]
            yield from self._exchange("weights", dict.fromkeys(newcomers, data), ())

    def _hand_over(self, move: HandOver) -> Main[None]:
        replica = self.replica
        outgoing: dict[int, tuple[tuple[bytes, bytes], ...]] = defaultdict(tuple)
        incoming: dict[int, list[int]] = defaultdict(list)
        for block, source, target in move.handovers:
            if source == self._rank:
                outgoing[target] += ((replica.weights[block], replica.kept[block]),)
            if target == self._rank:
                incoming[source].append(block)
        got = yield from self._exchange("state", outgoing, tuple(incoming))
        self._state_arrived = {}
        for source, blocks in incoming.items():
            for block, (weights, state) in zip(blocks, got[source], strict=True):
                self._state_arrived[block] = state
                if not move.is_whole:
                    replica.weights[block] = weights

    def _learn(self, source: Stance, blocks: Sequence[int], welcome: Welcome) -> None:
        self.replica.kept.update(self._state_arrived)
        self.replica.take_over(blocks)
        self._progress.learn(source.results)
        if welcome.members[self._rank].step < self.step:
            self._act(self._participant.hold(welcome.epoch, self.step))

    def _form(self, shares: LaneShares, holding: Holding, *, is_whole: bool) -> Main[None]:
        self._shares, self._holding = shares, holding
        self._sums = tuple((lanes, b"not filled") for lanes in shares.pieces(self._rank))
        if not is_whole:
            self._stage.count("weights completed")
            yield from self._spread_weights()
        self.replica.is_whole = True

    def _spread_weights(self) -> Main[None]:
        """Get the weights that other members have updated from the owners of their blocks."""
        owners, weights = self._holding.owners, self.replica.weights
        if self._is_spreading:
            told = yield from self._gather("new weights", tuple(weights))
            for block, owner in enumerate(owners):
                weights[block] = told[owner][block]

    @property
    def _is_spreading(self) -> bool:
        """Whether there are weights that only some members update, and the others get from them."""
        return any(len(ranks) < len(self._shares.by_rank) for ranks in self._holding.holders)

    def _compare(self) -> Main[None]:
        """Check that weights are equal on all members, and optimizer state on those that hold it."""
        replica = self.replica
        told = yield from self._gather("prints", (replica.content, tuple(sorted(replica.kept.items()))))
        for block, ranks in enumerate(self._holding.holders):
            if len({dict(told[rank][1]).get(block) for rank in ranks}) > 1:
                raise Violation(f"the holders {ranks} of block {block} have other state before step {self.step}")
        if len({content for content, _ in told}) > 1:
            raise Violation(f"the members of epoch {self._last_epoch} have other weights before step {self.step}")

    # A step

    def _take_step(self) -> Main[int]:
        if (missed := self._missed()) is not None:
            self._stage.count("steps missed")
            return missed
        job, replica, progress, step = self._job, self.replica, self._progress, self.step
        if job.is_paranoid:
            yield from self._compare()
        yield from self._compute()
        told: list[tuple[Sum, ...]] = yield from self._gather("lanes", self._sums)
        mean = self._laws.check_sums(self.name, step, told)
        if job.spoiled_step == step:
            yield from self._halt(Reason.NON_FINITE, f"step {step} is not a number")
        yield from self._commit(hash_of(*replica.weights))
        replica.update(mean)
        replica.advance(is_whole=not self._is_spreading)
        progress.clear()
        self._laws.check_replica(self.name, replica)
        if self._is_spreading:
            yield from self._spread_weights()
            replica.is_whole = True
            self._laws.check_replica(self.name, replica)
        return step

    def _compute(self) -> Main[None]:
        """Compute this rank's lanes, but those that it has kept."""
        progress = self._progress
        planned = plan_lanes(self._shares.by_rank[self._rank], list(progress.pieces))
        self._stage.post(Takes.COMPUTING, ("compute", self.name), self, self._finish_computing)
        yield Waits.COMPUTING
        parts: list[Sum] = []
        for lanes in planned:
            if lanes in progress.pieces:
                self._stage.count("pieces used again")
                parts.append((lanes, progress.pieces[lanes]))
            else:
                progress.outcomes[lanes.start] = self.replica.compute(lanes.start)
                parts.append((lanes, progress.outcomes[lanes.start]))
        self._sums = add_up(self._job.lanes, parts)
        progress.is_complete = True

    def _finish_computing(self) -> None:
        self._resume()

    def _commit(self, digest: bytes) -> Main[None]:
        """Report that this worker is done with its step, and return when the step counts."""
        self._made_in = self._last_epoch
        if moves := self._participant.done(self._last_epoch, 0.0, digest) if self._welcome else []:
            self._pending = digest  # else the epoch is over, and this never counts
            self._act(moves)
        word = yield Waits.WORD
        self._pending = None
        if not isinstance(word, Commit):
            raise EpochOver

    def _find(self) -> Main[None]:
        """Evaluate behind a step, unless the others have done so without this one."""
        if self._missed() is not None:
            return
        if not self._progress.has_found:
            told = yield from self._gather("evaluation", self.replica.evaluate())
            self._progress.note(told[0])
        self._laws.check_found(self.name, self.step, self._progress.take())

    def _halt(self, reason: Reason, words: str) -> Main[None]:
        """Stop all workers; this one does nothing any more."""
        self._act(self._participant.halt(self._last_epoch, reason, self._rank, words))
        while True:
            yield Waits.NOTHING
