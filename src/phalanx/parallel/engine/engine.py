"""The exact step: lanes, exchange, guard, commit, optimizer, with the same bits for any number of workers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from phalanx.buffers import LaneShares
from phalanx.errors import ConfigError
from phalanx.group import ElasticRun, Group
from phalanx.parallel.engine.buffers import LaneBuffers, list_buffers
from phalanx.parallel.engine.elastic_member import ElasticMember, EngineProgress
from phalanx.parallel.engine.exact_step import ExactStep
from phalanx.parallel.engine.extra import encode_extra
from phalanx.parallel.engine.guard import Guard, Samples
from phalanx.parallel.engine.lane_run import Batch, Batches, LaneRun, Loss
from phalanx.parallel.engine.preparation import begin_alike, lanes_of, lay_out_model, list_trained, share_out
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.engine.report import Report
from phalanx.parallel.engine.saved import check_alike, check_joined, load_replica, read_latest, save_replica
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.optimizer import (
    GroupSettings,
    Leaves,
    MakeOptimizer,
    Schedule,
    ScheduledRates,
    choose_optimizer,
)
from phalanx.parallel.reduction import Exchange, TorchExchange, refuse_synced_norms
from phalanx.telemetry import OFF, Recorder

Result = TypeVar("Result")


class Engine:
    """Trains a model in exact lanes. All ranks commit a step, or none does.

    ``optimizer`` is an element-wise class of ``torch.optim``, which gets the further ``settings``. ``groups`` gets the
    name of a parameter and the parameter, and returns the settings in which it differs. Instead of a class,
    ``optimizer`` may be a function that gets the leaves to update, which are blocks of the parameters, and returns an
    optimizer over them. ``schedule`` returns for a step the factor by which all learning rates are multiplied in it.

    ``clip`` limits the norm of the gradient; 0 means no limit. ``buckets`` lists the names of the parameters of each
    bucket, in any order; by default they are filled by size. With ``zero`` every rank updates only the
    leaves of its own shard and keeps only their state; in an ``ElasticRun`` two ranks do so for each leaf. The weights
    have the same bits. ``paranoid`` checks in every step that no bit of optimizer state or gradients was changed by a
    fault of a machine. ``recorder`` records what this rank does when. Ranks on one GPU exchange there, unless gradients
    shall go ``through_host``.

    Weights are f32 or bf16. Gradients of bf16 weights are added up in f32, the optimizer updates f32 values, and the
    weights are these, rounded. Checkpoints have the f32 values with the optimizer state.

    Over an ``ElasticRun`` the engine outlives the other members. If one is lost, the others compute its lanes and take
    the step with the bits that it would have had anyway. A newcomer gets the state from the members, not from its own
    model; it then continues behind their last step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        optimizer: type[torch.optim.Optimizer] | MakeOptimizer,
        exchange: Exchange | ElasticRun,
        *,
        groups: GroupSettings | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        clip: float = 0.0,
        buckets: Sequence[Sequence[str]] | None = None,
        zero: bool = False,
        paranoid: bool = False,
        recorder: Recorder = OFF,
        through_host: bool = False,
        **settings: Any,  # what the optimizer takes
    ) -> None:
        make_optimizer = choose_optimizer(optimizer, settings, groups)
        members = exchange.group if isinstance(exchange, ElasticRun) else exchange
        self._run = exchange if isinstance(exchange, ElasticRun) else None
        lanes = lanes_of(members)
        named = list_trained(model)
        if self._run and named[0][1].dtype is not torch.float32:
            raise ConfigError(
                "members of an elastic run train f32 weights: newcomers do not get the f32 values behind bf16 weights; "
                "use torch.autocast in the loss, or a group whose members do not change"
            )
        if lanes > 1:
            refuse_synced_norms(model)
        if isinstance(
            exchange, Group | TorchExchange
        ):  # else config, seed and checkpoint decide, and digests tell if weights differ
            begin_alike(model, exchange)
        parameters = [parameter for _, parameter in named]
        lane_buffers = LaneBuffers(list_buffers(model))
        is_scattered = zero and members.size > 1 and self._run is None  # else two ranks need each gradient
        layout = lay_out_model(named, lane_buffers.specs, buckets, is_sharded=is_scattered)
        leaves = Leaves(parameters, layout)
        self._replica = Replica(model, leaves, make_optimizer, is_sharing=zero)
        rates = ScheduledRates(self._replica.optimizer, schedule) if schedule else None
        self._exchange = StepExchange(
            members,
            layout,
            parameters,
            leaves,
            lane_buffers,
            lanes=lanes,
            is_elastic=self._run is not None,
            is_paranoid=paranoid,
            recorder=recorder,
            through_host=through_host,
        )
        if recorder.is_on and isinstance(exchange, Group | ElasticRun):
            exchange.record_to(recorder)
        self._lane_run = LaneRun(model, loss, parameters, lane_buffers, self._exchange, seed)
        self._guard = Guard(self._replica, self._exchange, self._lane_run)
        self._progress = EngineProgress()
        self._exact_step = ExactStep(
            self._replica,
            self._exchange,
            lane_buffers,
            self._lane_run,
            self._guard,
            self._progress,
            run=self._run,
            rates=rates,
            clip=clip,
            is_paranoid=paranoid,
        )
        self._told: int | None = None  # the last step whose report the caller has
        self._member: ElasticMember | None = None
        if self._run:
            self._member = ElasticMember(self._run, self._replica, self._progress, self._exchange, self._guard)
        else:
            holding = share_out(members, leaves, is_sharing=zero)
            self._exchange.form(members, LaneShares.even(lanes, members.size), holding)
            self._replica.keep_shard(holding, members.rank, members.size)

    @property
    def model(self) -> torch.nn.Module:
        """The model that is trained."""
        return self._replica.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. It keeps state for the leaves that this rank holds."""
        return self._replica.optimizer

    @property
    def step_number(self) -> int:
        """The next step."""
        return self._replica.step

    @step_number.setter
    def step_number(self, step: int) -> None:
        self._replica.step = step

    @property
    def extra(self) -> dict[str, Any]:  # Any: plain values and arrays
        """Small state of your own, which newcomers to an elastic run get: plain values, and arrays of numpy or torch.

        It must be the same on all ranks behind the same step.
        """
        return self._replica.extra

    @extra.setter
    def extra(self, extra: Mapping[str, Any]) -> None:
        encode_extra(extra)  # refuses what cannot be kept
        self._replica.replace_extra(extra)

    def step(
        self,
        batches: Batches,
        samples: Samples = lambda _: (),
        *,
        wants_stop: bool = False,
        wants_leave: bool = False,
    ) -> Report:
        """Take one step: compute this rank's lanes, and update the weights if the step counts on all ranks.

        ``samples`` returns the numbers of a lane's samples, for errors. If a gradient is not finite or weights differ,
        all ranks raise the same error and leave the weights as they were. ``wants_stop`` is reported to all ranks;
        that all of them have ``wants_leave`` is reported as ``wants_stop`` too.
        """

        def take() -> Report:
            if (missed := self._missed()) is None:
                return self._step(batches, samples, wants_stop=wants_stop, wants_leave=wants_leave)
            self._replica.restore_extra()
            return missed

        report = self._until_done(take)
        self._told = report.step
        return report

    def train(
        self,
        batches: Callable[[int, int], Sequence[Batch]],
        steps: int,
        *,
        samples: Callable[[int, int], tuple[int, ...]] = lambda _, __: (),
        wants_stop: Callable[[], bool] = lambda: False,
        wants_leave: Callable[[], bool] = lambda: False,
    ) -> Iterator[Report]:
        """Take steps until ``steps`` are taken or a rank wants to stop, and yield the report of each.

        If this rank ``wants_leave``, its present step is its last, and the others go on without it.
        ``batches`` and ``samples`` are given the step and the lane. A member that comes to an elastic run in the middle
        begins with the report of the last step, so that all members do the same behind each step.
        """
        self._until_done(lambda: None)
        while self._missed() or (
            self.step_number < steps and not (self._replica.report and self._replica.report.wants_stop)
        ):
            is_leaving = wants_leave()
            yield self.step(
                lambda lane: batches(self.step_number, lane),
                lambda lane: samples(self.step_number, lane),
                wants_stop=wants_stop(),
                wants_leave=is_leaving,
            )
            if is_leaving:
                return

    def evaluate(self, batches: Batches) -> float:
        """Return the mean loss over all lanes in eval mode, with the same bits for any number of ranks."""
        return self._find(lambda: self._exact_step.evaluate(batches), missed=math.nan)

    def compare(self) -> bytes:
        """Check that weights, buffers and optimizer state are equal on all ranks, and return a digest of all of it.

        If not, all ranks raise ``WeightsDiverged``. The digest is the same for any number of ranks. With ``zero`` the
        optimizer state of a leaf is compared between the ranks that hold it: two in an elastic run, and else only one.
        """
        return self._find(self._guard.compare, missed=b"")

    def together(self, act: Callable[[], None]) -> None:
        """Do something that only one rank may do in effect, such as writing a file, and return when it is done.

        All ranks call this. If a member of an elastic run is lost meanwhile, the others do it again.
        """

        def do() -> float:
            act()
            return float(self._exchange.members.all_reduce(np.zeros(1))[0])

        self._find(do, missed=0.0)

    def meet_once_more(self, timeout_s: float) -> None:
        """Connect the members of the last epoch of a run whose coordinator stays away, to save what they hold.

        They can make calls of their group then, and take no steps. If one does not come in time, raise TransportError.
        """
        if self._member:  # else the group is as it was
            self._member.meet_once_more(timeout_s)

    @property
    def was_away(self) -> bool:
        """Whether the others took steps without this rank, since ``step`` or ``train`` last returned a report.

        What ``evaluate``, ``compare`` and ``together`` then returned is nothing. The next report is the others' last.
        """
        return self._missed() is not None

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the weights and buffers, and this rank's optimizer state, by name, for a checkpoint.

        With ``zero``, "shard" says whose part of the optimizer state it is. Leave it out when you join all parts.
        """
        return self._replica.state()

    def load_state(self, state: Mapping[str, Mapping[str, torch.Tensor]], step: int) -> None:
        """Load a state that ``state`` has returned on this rank, or the joined state of all ranks of any group.

        ``step`` is the next step. A shard of another rank is a ConfigError.
        """
        self._replica.load(state, step)

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint into a folder, and return its directory when the checkpoint is complete.

        It has weights, buffers, optimizer state, the next step and ``extra``. All ranks call this, after the same step,
        with the same folder. They compare their state first. Rank 0 writes; with ``zero`` every rank writes its shard.
        If a rank cannot write, all ranks raise ConfigError and nothing stays. If a member of an elastic run is lost
        meanwhile, the others write the checkpoint again.
        """
        step = self.step_number
        if words := self._find(lambda: self._save(Path(folder)), missed=b""):
            raise ConfigError(words.decode())
        return Path(folder) / f"step-{step:08}"

    def load(self, path: str | Path) -> bool:
        """Load the checkpoint at a path, or the latest in a folder, and return whether there is one.

        All ranks call this. Any number of ranks can load what any number has saved. In an elastic run, call it before
        the first step, and join with ``phalanx.join_run(step=latest_step(folder))``. A newcomer to a run that has gone
        on gets the state from the members, whatever it loads.
        """
        found = read_latest(Path(path))
        if self._run:
            check_joined(self._run, self._replica, found)
        else:
            check_alike(self._exchange.members, found)
        if found:
            load_replica(self._replica, found)
            if not self._run:
                self._guard.compare()
        return found is not None

    def explain(self) -> str:
        """Return where gradients meet, and why. In an elastic run this may change with the members."""
        return self._exchange.reducer.explain()

    def close(self) -> None:
        """Take this engine's hooks off the model. Closing twice is harmless."""
        self._lane_run.close()

    def _until_done(self, act: Callable[[], Result]) -> Result:
        return self._member.until_done(act) if self._member else act()

    def _find(self, act: Callable[[], Result], missed: Result) -> Result:
        """Return what the members find together behind a step, or ``missed`` if they have taken others meanwhile."""

        def find() -> Result:
            if self._missed():
                return missed
            if not self._progress.has_found:
                self._progress.note(act())
            found: Result = self._progress.take()
            return found

        return self._until_done(find)

    def _missed(self) -> Report | None:
        """Return the last report if the members took its step without this one, and its caller was not told."""
        report = self._replica.report
        return report if self._member and report and report.step != self._told else None

    def _step(self, batches: Batches, samples: Samples, *, wants_stop: bool, wants_leave: bool) -> Report:
        return self._exact_step.take(batches, samples, wants_stop=wants_stop, wants_leave=wants_leave)

    def _save(self, folder: Path) -> bytes:
        self._guard.compare()
        return save_replica(self._replica, folder, self._exchange.members)
