"""A member of an elastic run: it enters each epoch with the state of the others, and acts until it succeeds."""

import logging
from collections.abc import Callable
from typing import TypeVar

from phalanx.buffers import LaneShares
from phalanx.errors import ConfigError, EpochChanged
from phalanx.group import ENDS_EPOCH, ElasticRun, Group
from phalanx.parallel.engine.guard import Guard
from phalanx.parallel.engine.progress import StepProgress
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.engine.sync import Roles, Stance, choose_roles, kept_lanes, tell, transfer
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
        source = stances[roles.source]
        self._check_model(group, roles)
        if roles.newcomers:
            self._share_state(group, roles, source)
        elif roles.is_first:
            broadcast([tensor for _, tensor in self._replica.tensors], group)
        self._progress.learn(source.results)
        self._exchange.form(group, LaneShares.keeping(self._exchange.lanes, kept_lanes(stances)))
        if roles.newcomers:
            self._guard.compare()
        self._is_new = False
        if self._run.is_known_to_hold < self._replica.step:
            self._run.hold(self._replica.step)

    def _stance(self) -> Stance:
        return Stance(
            self._replica.step,
            self._is_new,
            self._replica.report,
            self._progress.results,
            self._progress.kept_lanes,
            self._replica.describe_groups(),
            self._replica.describe_state(),
            self._replica.extra,
        )

    def _check_model(self, group: Group, roles: Roles) -> None:
        """Raise ConfigError if this newcomer has another model. A member waits for an epoch without the newcomer."""
        try:
            compare(self._replica.tensors, group)
        except ConfigError as error:
            if group.rank in roles.newcomers or roles.is_first:
                raise
            raise EpochChanged(f"a worker with another model came, and must go: {error}") from error

    def _share_state(self, group: Group, roles: Roles, source: Stance) -> None:
        """Give newcomers the state of those who hold it."""
        weights = [tensor.data for _, tensor in self._replica.tensors]
        if group.rank not in roles.newcomers:
            transfer(group, roles, [*weights, *self._replica.list_state()])
            return
        state = self._replica.make_state(source.state)
        transfer(group, roles, [*weights, *state])
        self._replica.take_over(source, state)
        self._progress.clear()
