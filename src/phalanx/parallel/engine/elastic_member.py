"""A member of an elastic run: it enters each epoch with the state of the others, and acts until it succeeds."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from phalanx.buffers import LaneShares
from phalanx.elastic import (
    Compare,
    CopyWeights,
    EntryMove,
    Follow,
    Form,
    HandOver,
    Handover,
    Hold,
    Holding,
    Learn,
    Roles,
    Settle,
    Stance,
    StartAlike,
    StepProgress,
    check_sharing,
    choose_roles,
    find_lost_state,
    plan_entry,
)
from phalanx.errors import ConfigError, EpochChanged, StateLost
from phalanx.group import ENDS_EPOCH, ElasticRun, Group
from phalanx.parallel.engine.guard import Guard
from phalanx.parallel.engine.lane_run import LaneOutcome
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.engine.sync import Introduction, StateSpec, tell
from phalanx.parallel.engine.transfer import copy_to_newcomers, hand_over
from phalanx.parallel.optimizer import Leaf
from phalanx.parallel.reduction import KeptPiece, broadcast, compare
from phalanx.telemetry import Activity
from phalanx.transport import drop_variables

_log = logging.getLogger("phalanx")

Result = TypeVar("Result")
EngineProgress = StepProgress[LaneOutcome, KeptPiece]


class ElasticMember:
    """This worker in the epochs of a run. Its replica and its progress outlive them; its exchange is formed anew."""

    def __init__(
        self, run: ElasticRun, replica: Replica, progress: EngineProgress, exchange: StepExchange, guard: Guard
    ) -> None:
        self._run = run
        self._replica = replica
        self._progress = progress
        self._exchange = exchange
        self._guard = guard
        self._is_in = self._is_over = False  # whether it has entered the present epoch, and whether that is over
        self._arrived: tuple[list[StateSpec], list[torch.Tensor]] = ([], [])  # optimizer state, until it is held

    def until_done(self, act: Callable[[], Result]) -> Result:
        """Act together with the other members, once more in every new epoch, until it succeeds."""
        ended_ns: int | None = None
        while True:
            if self._is_over:
                self._run.next_group()  # raises the reason if the run is over, or this worker's part in it
                self._is_in = self._is_over = False
            try:
                if not self._is_in:
                    self._enter(self._run.group)
                    self._is_in = True
                    if ended_ns is not None:
                        self._exchange.recorder.record(Activity.RECOVERY, ended_ns)
                return act()
            except ENDS_EPOCH as error:
                _log.info("epoch %d is over for step %d: %r", self._run.group.epoch, self._replica.step, error)
                ended_ns = ended_ns or time.monotonic_ns()
                if self._is_in:
                    self._progress.keep(self._sums())
                self._is_over = True
                drop_variables(error)

    def meet_once_more(self, timeout_s: float) -> None:
        """Bring the members of the last epoch to the same state, without a coordinator, so that they can save it."""
        self._enter(self._run.meet_once_more(timeout_s))

    def _sums(self) -> Iterator[tuple[range, KeptPiece]]:
        """Yield the pieces of this rank that are in the present reducer."""
        for lanes, gradients in self._exchange.reducer.keep():
            outcomes = [self._progress.outcomes[lane] for lane in lanes]
            counts, used = [each.count for each in outcomes], np.sum([each.used for each in outcomes], axis=0)
            yield lanes, KeptPiece(lanes, counts, used, gradients)

    def _enter(self, group: Group) -> None:
        """Bring all members of an epoch to the same state, and prepare their exchange."""
        replica, leaves = self._replica, self._replica.leaves
        self._progress.begin_epoch()
        told = tell(group, replica.introduce(self._progress))
        stances = [each.stance for each in told]
        roles = choose_roles(stances)
        self._exchange.members = group
        self._check_alike(group, stances, roles)
        if lost := find_lost_state(stances, len(leaves.leaves)):
            self._guard.halt(_state_lost(stances[roles.source].step, [leaves.leaves[number] for number in lost]))
        for move in plan_entry(group.rank, stances, leaves.sizes, group.hosts, self._exchange.lanes):
            self._make(move, group, told)

    def _make(self, move: EntryMove, group: Group, told: Sequence[Introduction]) -> None:
        """Do one thing of those by which this member enters an epoch."""
        replica = self._replica
        match move:
            case StartAlike():
                broadcast([tensor for _, tensor in replica.tensors], group)
            case Settle():
                replica.is_new = False
            case CopyWeights(holders=holders, newcomers=newcomers):
                copy_to_newcomers(group, holders, newcomers, [tensor.data for _, tensor in replica.tensors])
            case HandOver(handovers=handovers, is_whole=is_whole):
                self._hand_over(group, told, handovers, is_whole=is_whole)
            case Follow(source=source, is_whole=is_whole):
                replica.follow_member(told[source], is_whole=is_whole)
                self._progress.clear()
            case Learn(source=source, blocks=blocks):
                self._learn(told[source].stance, blocks)
            case Form(shares=shares, holding=holding, is_whole=is_whole):
                self._form(group, shares, holding, is_whole=is_whole)
            case Compare():
                self._guard.compare()
            case Hold(holding=holding):
                replica.keep_shard(holding, group.rank, group.size)

    def _check_alike(self, group: Group, stances: Sequence[Stance], roles: Roles) -> None:
        """Raise ConfigError if this newcomer differs in its model or in ``zero``. A member waits for another epoch."""
        try:
            compare(self._replica.tensors, group)
            check_sharing(stances, roles.source)
        except ConfigError as error:
            if group.rank in roles.newcomers or roles.is_first:
                raise
            raise EpochChanged(f"a worker that differs came, and must go: {error}") from error

    def _learn(self, source: Stance, blocks: Sequence[int]) -> None:
        """Hold what has arrived, say so if the coordinator does not know, and take over the results of ``source``."""
        self._replica.load_arrived(*self._arrived)
        self._replica.take_over(blocks)
        self._progress.learn(source.results)
        if self._run.is_known_to_hold < self._replica.step:
            self._run.hold(self._replica.step)

    def _form(self, group: Group, shares: LaneShares, holding: Holding, *, is_whole: bool) -> None:
        """Prepare the exchange. Get the weights that this member lacks, unless all members have all of them."""
        self._exchange.form(group, shares, holding)
        if not is_whole:
            self._exchange.spread_weights()
        self._replica.is_whole = True

    def _hand_over(
        self, group: Group, told: Sequence[Introduction], handovers: Sequence[Handover], *, is_whole: bool
    ) -> None:
        """Send the optimizer state that others hold from now on, and receive what this member does."""
        replica = self._replica
        outgoing: dict[int, list[torch.Tensor]] = defaultdict(list)
        incoming: dict[int, list[torch.Tensor]] = defaultdict(list)
        specs: list[StateSpec] = []
        state: list[torch.Tensor] = []
        described = [each.specs_by_leaf() for each in told]
        for block, source, target in handovers:
            if source == group.rank:
                outgoing[target] += replica.list_state(block, has_weights=not is_whole)
            if target == group.rank:
                made = replica.make_state(described[source][block])
                incoming[source] += made if is_whole else [replica.leaves.leaves[block].block.data, *made]
                specs += described[source][block]
                state += made
        hand_over(group, outgoing, incoming)
        self._arrived = specs, state


def _state_lost(step: int, leaves: Sequence[Leaf]) -> StateLost:
    names = sorted({leaf.name for leaf in leaves})
    what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} other parameters"
    return StateLost(
        f"the optimizer state of {what} was lost before step {step}, because all workers that held it are gone: start "
        "all workers again from the last checkpoint",
        step=step,
    )
