"""One exact step from lanes to new weights: compute, exchange, check, commit, update."""

import math
import time
from dataclasses import replace

import numpy as np

from phalanx.group import ElasticRun, Group
from phalanx.parallel.engine.buffers import LaneBuffers
from phalanx.parallel.engine.clock import StepClock
from phalanx.parallel.engine.digest import join
from phalanx.parallel.engine.elastic_member import EngineProgress
from phalanx.parallel.engine.extra import encode_extra
from phalanx.parallel.engine.guard import Guard, Samples
from phalanx.parallel.engine.lane_run import Batches, LaneRun
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.engine.report import Report
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.optimizer import ScheduledRates
from phalanx.parallel.reduction import clip_factor
from phalanx.telemetry import Activity


class ExactStep:
    """Takes one step of a replica after another, with the members that its exchange has at the time.

    ``run`` is where steps of an elastic run are committed. ``rates`` sets the learning rates of each step. ``clip``
    limits the norm of the gradient; 0 means no limit. If it ``is_paranoid``, ranks compare their state before a step.
    """

    def __init__(
        self,
        replica: Replica,
        exchange: StepExchange,
        buffers: LaneBuffers,
        lane_run: LaneRun,
        guard: Guard,
        progress: EngineProgress,
        *,
        run: ElasticRun | None,
        rates: ScheduledRates | None,
        clip: float,
        is_paranoid: bool,
    ) -> None:
        self._replica = replica
        self._exchange = exchange
        self._buffers = buffers
        self._lane_run = lane_run
        self._guard = guard
        self._progress = progress
        self._run = run
        self._rates = rates
        self._clip = clip
        self._is_paranoid = is_paranoid
        self._recorder = exchange.recorder

    def take(self, batches: Batches, samples: Samples, *, wants_stop: bool, wants_leave: bool) -> Report:
        """Compute this rank's lanes, and update the weights if the step counts on all ranks."""
        members, reducer, values = self._exchange.members, self._exchange.reducer, self._exchange.values
        epoch = members.epoch if isinstance(members, Group) else 0
        self._recorder.begin_step(self._replica.step, members.rank, epoch)
        clock = StepClock(lambda: members.waited_s, self._recorder)
        if self._is_paranoid:
            self._guard.compare()
        with self._guard.telling():
            if self._rates:
                self._rates.set(self._replica.step)
            ready = self._replica.note_weights()
            self.compute(batches)
            values.lane_seconds[members.rank] = clock.passed_s
            digest = join(self._replica.fingerprint(ready))  # of what the step began with, while gradients travel
            self._tell_outcomes()
            values.set_digest(members.rank, digest)
            values.stops[:], values.leaves[:] = wants_stop, wants_leave
            extra = encode_extra(self._replica.extra)
            clock.end_computing()
            norm = reducer.finish().norm
        loss = values.loss(reducer.counts)
        self._guard.check(norm, loss, batches, samples)
        if self._clip and (factor := clip_factor(norm, self._clip)) < 1:
            reducer.scale(factor)
        clock.end_exchange()
        (self._run or members).commit(loss, digest)
        clock.end_waiting()
        with self._guard.telling():
            self.update()
        clock.end_update()
        report = Report(
            self._replica.step,
            loss,
            norm,
            digest,
            values.is_last_step,
            *clock.read(),
            lanes_s=float(values.lane_seconds.max()),
        )
        self._replica.conclude(report, extra, is_whole=not self._exchange.is_spreading)
        self._progress.clear()
        return self._spread_weights(report, clock) if self._exchange.is_spreading else report

    def evaluate(self, batches: Batches) -> float:
        """Return the mean loss over all lanes in eval mode."""
        began_ns = time.monotonic_ns()
        found = np.zeros((2, self._exchange.lanes))
        with self._guard.telling():
            for lane in self._exchange.reducer.lanes:
                found[:, lane] = self._lane_run.evaluate(lane, batches)
        self._exchange.members.all_reduce(found.reshape(-1))
        self._recorder.record(Activity.EVALUATE, began_ns)
        totals, counts = found
        return math.fsum(totals) / math.fsum(counts) if np.isfinite(totals).all() else math.nan

    def compute(self, batches: Batches) -> None:
        """Compute this rank's lanes, but those that it has kept. Buckets leave while the last lane is computed."""
        reducer, progress = self._exchange.reducer, self._progress
        planned = reducer.begin(list(progress.pieces))
        self._lane_run.begin()
        with self._lane_run.forking_random():
            for lanes in planned:
                if lanes in progress.pieces:
                    reducer.put_piece(progress.pieces[lanes])
                else:
                    progress.outcomes[lanes.start] = self._lane_run.run(self._replica.step, lanes.start, batches)
        progress.is_complete = True

    def _tell_outcomes(self) -> None:
        """Put what this rank's lanes came to into the values of the step; a GPU has to be through with them."""
        values, progress, own = self._exchange.values, self._progress, self._exchange.reducer.lanes
        values.totals[list(own)] = [float(progress.outcomes[lane].total) for lane in own]
        if 0 in own:
            values.integers[:] = progress.outcomes[0].integers

    def update(self) -> None:
        """Update the leaves that this rank holds, and the buffers, now that the step counts."""
        reducer = self._exchange.reducer
        reducer.wait_for_copies()
        self._replica.leaves.set_gradients((reducer.summary.used > 0).tolist())
        self._replica.optimizer.step()
        self._replica.leaves.round()
        self._buffers.apply(self._exchange.mean_changes, self._exchange.values.integers)

    def _spread_weights(self, report: Report, clock: StepClock) -> Report:
        """Get the weights that others have updated. If the epoch ends meanwhile, the members do so in the next one."""
        began_ns = time.monotonic_ns()
        with self._guard.telling():
            self._exchange.spread_weights()
        self._recorder.record(Activity.WEIGHTS, began_ns)
        compute_s, _, _ = clock.read()
        self._replica.report, self._replica.is_whole = replace(report, compute_s=compute_s), True
        return self._replica.report
