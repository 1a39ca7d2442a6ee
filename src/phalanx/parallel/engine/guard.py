"""The guard of a step: all ranks halt with the same error when weights differ or a value is not finite."""

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np

from phalanx.errors import ConfigError, Halted, PhalanxError, RemoteError, WeightsDiverged
from phalanx.parallel.engine.digest import diverged, fingerprint_state, join
from phalanx.parallel.engine.lane_run import Batches, LaneRun
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.reduction import non_finite

Samples = Callable[[int], tuple[int, ...]]
"""Returns the numbers of a lane's samples in this step."""


class Guard:
    """Checks steps of a replica before they count, and halts all ranks together."""

    def __init__(self, replica: Replica, exchange: StepExchange, lane_run: LaneRun) -> None:
        self._replica = replica
        self._exchange = exchange
        self._lane_run = lane_run

    def check(self, norm: float, loss: float, batches: Batches, samples: Samples) -> None:
        """Halt all ranks unless their weights are equal and all values are finite."""
        step, reducer = self._replica.step, self._exchange.reducer
        if not reducer.counts.any():
            raise ConfigError(f"all lanes of step {step} count 0: there is nothing to take the mean of")
        if not self._exchange.values.has_one_digest:
            self.compare()
            words = f"the digests of ranks differed before step {step}, although their weights are equal"
            self.halt(WeightsDiverged(f"{words}: look for a machine whose memory fails", step=step))
        if (integrity := reducer.integrity) and (error := integrity.check(step)):
            self.halt(error)
        if not math.isfinite(norm) or not math.isfinite(loss):
            self._trace(batches, samples)

    def compare(self) -> bytes:
        """Return a digest of weights, buffers and optimizer state. Halt all ranks if they differ."""
        replica, members = self._replica, self._exchange.members
        numbers = replica.leaves.in_model_order()
        leaves = [replica.leaves.leaves[number] for number in numbers]
        names = [name for name, _ in replica.digested]
        prints = np.zeros((members.size, len(names) + len(leaves)))
        kept = replica.leaves.with_masters(replica.optimizer.state, replica.held)
        prints[members.rank] = [*replica.fingerprint(), *fingerprint_state(kept, leaves)]
        members.all_reduce(prints.reshape(-1))
        for column, number in enumerate(numbers, len(names)):
            holders = self._exchange.holding.holders[number]
            prints[[rank for rank in range(members.size) if rank not in holders], column] = prints[holders[0], column]
        if not (prints == prints[0]).all():
            names += [f"the optimizer state of {leaf.name}" for leaf in leaves]
            self.halt(diverged(replica.step, names, prints))
        return join(prints[0].astype(int).tolist())

    @contextmanager
    def telling(self) -> Iterator[None]:
        """If this rank's own program fails in this block, tell the other ranks why, so that they do not wait."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PhalanxError) and not isinstance(error, ConfigError):
                raise  # an error of the group, which all ranks get
            rank, step = self._exchange.members.rank, self._replica.step
            words = "".join(traceback.format_exception(error))[-3000:]
            told = RemoteError(f"rank {rank} failed at step {step}:\n{words}", step=step, rank=rank)
            self._exchange.members.halt(told)
            raise

    def halt(self, error: Halted) -> NoReturn:
        """Halt with an error that all ranks have found. They meet first, so that each one raises its own full error."""
        try:
            self._exchange.members.all_reduce(np.zeros(1))
            error = self._exchange.members.halt(error)
        except Halted as told:  # another rank was faster
            error = error.as_told(told)
        raise error

    def _trace(self, batches: Batches, samples: Samples) -> NoReturn:
        """Find the lane and the parameter of a value that is not finite: each rank computes its lanes again."""
        step, members, reducer = self._replica.step, self._exchange.members, self._exchange.reducer
        found = np.zeros((members.size, 2))
        with self._lane_run.forking_random():
            for lane in reversed(reducer.lanes):
                number = self._lane_run.find_non_finite(step, lane, batches)
                if number is not None:
                    found[members.rank] = lane + 1, number + 1
        members.all_reduce(found.reshape(-1))
        guilty = [(int(lane) - 1, rank, int(number) - 1) for rank, (lane, number) in enumerate(found) if lane]
        layout = reducer.layout
        if guilty:
            lane, rank, number = min(guilty)
            name = layout.parameters[number].name if number >= 0 else None
            self.halt(non_finite(step, rank=rank, lane=lane, parameter=name, samples=samples(lane)))
        chunks = np.flatnonzero(~np.isfinite(reducer.summary.squares))
        name = layout.parameters[layout.parameter_of_chunk(int(chunks[0]))].name if len(chunks) else None
        self.halt(non_finite(step, rank=None, lane=None, parameter=name))
