"""A member of an elastic run: it enters each epoch with the state of the others, and acts until it succeeds."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from phalanx.buffers import LaneShares
from phalanx.errors import ConfigError, EpochChanged, StateLost
from phalanx.group import ENDS_EPOCH, ElasticRun, Group
from phalanx.parallel.engine.guard import Guard
from phalanx.parallel.engine.holders import REDUNDANCY, Holding, find_lost, share_state
from phalanx.parallel.engine.progress import StepProgress
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.engine.sync import (
    Roles,
    Stance,
    StateSpec,
    check_sharing,
    choose_roles,
    kept_lanes,
    specs_by_leaf,
    tell,
)
from phalanx.parallel.engine.transfer import copy_to_newcomers, hand_over
from phalanx.parallel.optimizer import Leaf
from phalanx.parallel.reduction import broadcast, compare

_log = logging.getLogger("phalanx")

Result = TypeVar("Result")


class ElasticMember:
    """This worker in the epochs of a run. Its replica and its progress outlive them; its exchange is formed anew."""

    def __init__(
        self, run: ElasticRun, replica: Replica, progress: StepProgress, exchange: StepExchange, guard: Guard
    ) -> None:
        self._run = run
        self._replica = replica
        self._progress = progress
        self._exchange = exchange
        self._guard = guard
        self._is_new = True  # this member has not been in an epoch yet
        self._is_in = self._is_over = False  # whether it has entered the present epoch, and whether that is over

    def until_done(self, act: Callable[[], Result]) -> Result:
        """Act together with the other members, once more in every new epoch, until it succeeds."""
        while True:
            if self._is_over:
                self._run.next_group()  # raises the reason if the run is over, or this worker's part in it
                self._is_in = self._is_over = False
            try:
                if not self._is_in:
                    self._enter(self._run.group)
                    self._is_in = True
                return act()
            except ENDS_EPOCH as error:
                _log.info("epoch %d is over for step %d: %r", self._run.group.epoch, self._replica.step, error)
                if self._is_in:
                    self._progress.keep(self._exchange.reducer)
                self._is_over = True

    def _enter(self, group: Group) -> None:
        """Bring all members of an epoch to the same state, and prepare their exchange."""
        stances = tell(group, self._stance())
        roles = choose_roles(stances)
        self._exchange.members = group
        self._check_alike(group, stances, roles)
        holding = self._share_out(group, stances, roles)
        if roles.is_first and not roles.newcomers:
            broadcast([tensor for _, tensor in self._replica.tensors], group)
        self._is_new &= group.rank in roles.newcomers
        is_whole = all(stances[rank].is_whole for rank in roles.holders)
        self._move_state(group, stances, roles, holding, is_whole=is_whole)
        self._progress.learn(stances[roles.source].results)
        self._exchange.form(group, LaneShares.keeping(self._exchange.lanes, kept_lanes(stances)), holding)
        if not is_whole:
            self._exchange.spread_weights()
        self._replica.is_whole = True
        if roles.newcomers or self._replica.is_sharing:
            self._guard.compare()  # when this returns, all members have what they hold from now on
        self._replica.hold(holding, group.rank, group.size)
        if self._run.is_known_to_hold < self._replica.step:
            self._run.hold(self._replica.step)

    def _stance(self) -> Stance:
        return Stance(
            self._replica.step,
            self._is_new,
            self._replica.report,
            self._progress.results,
            self._progress.kept_lanes,
            sorted(self._replica.held),
            self._replica.is_whole,
            self._replica.is_sharing,
            self._replica.describe_groups(),
            self._replica.describe_state(),
            self._replica.describe_extra(),
        )

    def _check_alike(self, group: Group, stances: Sequence[Stance], roles: Roles) -> None:
        """Raise ConfigError if this newcomer differs in its model or in ``zero``. A member waits for another epoch."""
        try:
            compare(self._replica.tensors, group)
            check_sharing(stances, roles.source)
        except ConfigError as error:
            if group.rank in roles.newcomers or roles.is_first:
                raise
            raise EpochChanged(f"a worker that differs came, and must go: {error}") from error

    def _share_out(self, group: Group, stances: Sequence[Stance], roles: Roles) -> Holding:
        """Decide who holds which optimizer state in this epoch. Halt all members if nobody has some of it."""
        leaves = self._replica.leaves
        held = [each.held if rank in roles.holders else () for rank, each in enumerate(stances)]
        if lost := find_lost(len(leaves.leaves), held):
            self._guard.halt(_state_lost(stances[roles.source].step, [leaves.leaves[number] for number in lost]))
        redundancy = REDUNDANCY if self._replica.is_sharing else group.size
        return share_state(leaves.sizes, held, group.hosts, redundancy)

    def _move_state(
        self, group: Group, stances: Sequence[Stance], roles: Roles, holding: Holding, *, is_whole: bool
    ) -> None:
        """Give newcomers the weights, and every member the optimizer state that it holds from now on.

        If a member is not ``is_whole``, the weights of a leaf travel with its state: only its holders surely have them.
        """
        replica = self._replica
        if roles.newcomers:
            copy_to_newcomers(group, roles.holders, roles.newcomers, [tensor.data for _, tensor in replica.tensors])
        outgoing: dict[int, list[torch.Tensor]] = defaultdict(list)
        incoming: dict[int, list[torch.Tensor]] = defaultdict(list)
        specs: list[StateSpec] = []
        state: list[torch.Tensor] = []
        described = [specs_by_leaf(stance) for stance in stances]
        for block, source, target in holding.handovers:
            if source == group.rank:
                outgoing[target] += replica.list_state(block, has_weights=not is_whole)
            if target == group.rank:
                made = replica.make_state(described[source][block])
                incoming[source] += made if is_whole else [replica.leaves.leaves[block].block.data, *made]
                specs += described[source][block]
                state += made
        hand_over(group, outgoing, incoming)
        if group.rank in roles.newcomers:
            replica.follow(stances[roles.source], is_whole=is_whole)
            self._progress.clear()
            self._is_new = False
        replica.take_over([each.block for each in holding.handovers if each.target == group.rank], specs, state)


def _state_lost(step: int, leaves: Sequence[Leaf]) -> StateLost:
    names = sorted({leaf.name for leaf in leaves})
    what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} other parameters"
    return StateLost(
        f"the optimizer state of {what} was lost before step {step}, because all workers that held it are gone: start "
        "all workers again from the last checkpoint",
        step=step,
    )
