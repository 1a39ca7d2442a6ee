"""The exact step: lanes, exchange, guard, commit, optimizer, with the same bits for any number of workers."""

import logging
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from phalanx.buffers import LaneShares
from phalanx.errors import ConfigError, EpochChanged, Halted, PhalanxError, RemoteError, WeightsDiverged
from phalanx.group import ENDS_EPOCH, ElasticRun, Group
from phalanx.parallel.engine.buffers import LaneBuffers, list_buffers
from phalanx.parallel.engine.clock import StepClock
from phalanx.parallel.engine.digest import diverged, fingerprint_state, join
from phalanx.parallel.engine.lane_run import Batch, LaneOutcome, LaneRun, Loss, evaluating, split
from phalanx.parallel.engine.report import Report
from phalanx.parallel.engine.step_values import StepValues
from phalanx.parallel.engine.sync import (
    Roles,
    Stance,
    choose_roles,
    describe_state,
    kept_lanes,
    list_state,
    load_state,
    make_state,
    tell,
    transfer,
)
from phalanx.parallel.optimizer import Leaf, Leaves, Weights, check_names, check_taken, gather, scatter, wants_on_device
from phalanx.parallel.reduction import (
    Exchange,
    KeptPiece,
    Layout,
    Ownership,
    ParameterSpec,
    Reducer,
    arrange,
    broadcast,
    clip_factor,
    compare,
    fingerprints,
    lay_out,
    non_finite,
    refuse_synced_norms,
    seed_of,
    share_blocks,
)

Batches = Callable[[int], Sequence[Batch]]
"""Returns the batches of a lane in this step. It must return the same batches on every rank."""

_BUCKET_BYTES = 8 << 20
_log = logging.getLogger("phalanx")

Result = TypeVar("Result")


class Engine:
    """Trains a model in exact lanes. All ranks commit a step, or none does.

    ``make_optimizer`` gets the leaves to update, which are blocks of the parameters, and returns an element-wise
    optimizer of ``torch.optim`` over them. ``clip`` limits the norm of the gradient; 0 means no limit. ``buckets``
    lists the names of the parameters of each bucket, in any order; by default they are filled by size. With ``zero``
    every rank gets only the leaves of its own shard and keeps only their state. The weights have the same bits.
    ``paranoid`` checks in every step that no bit of optimizer state or gradients was changed by a fault of a machine.

    Over an ``ElasticRun`` the engine outlives the other members. If one is lost, the others compute its lanes and take
    the step with the bits that it would have had anyway. A newcomer gets the state from the members, not from its own
    model; it then continues behind their last step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        make_optimizer: Callable[[list[Leaf]], torch.optim.Optimizer],
        exchange: Exchange | ElasticRun,
        *,
        seed: int = 0,
        clip: float = 0.0,
        buckets: Sequence[Sequence[str]] | None = None,
        zero: bool = False,
        paranoid: bool = False,
    ) -> None:
        self.model = model
        self.step_number = 0
        """The next step."""
        self.extra: bytes = b""
        """Small state of your own, which newcomers to an elastic run get too."""
        self._loss = loss
        self._elastic = exchange if isinstance(exchange, ElasticRun) else None
        self._exchange = exchange.group if isinstance(exchange, ElasticRun) else exchange
        self._lanes = _lanes_of(self._exchange)
        self._seed = seed
        self._clip = clip
        self._is_paranoid = paranoid
        named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        _check(named)
        if self._lanes > 1:
            refuse_synced_norms(model)
        if zero and self._elastic:
            raise ConfigError("a run whose members change cannot share the optimizer yet: leave zero out")
        self._tensors = [*model.named_parameters(), *model.named_buffers()]
        if isinstance(exchange, Group):  # else config, seed and checkpoint decide, and digests tell if weights differ
            compare(self._tensors, exchange)
            broadcast([tensor for _, tensor in self._tensors], exchange)
        buffers = list_buffers(model)
        self._buffers = LaneBuffers(buffers)
        is_sharded = zero and self._exchange.size > 1
        self._layout = _lay_out(named, self._buffers.specs, buckets, is_sharded=is_sharded)
        self._ownership = _share_out(self._exchange, self._layout) if is_sharded else None
        self._weights = (
            Weights(self._parameters, self._ownership, self._exchange)
            if self._ownership and isinstance(self._exchange, Group)
            else None
        )
        self._shard = (self._exchange.rank, self._exchange.size) if self._ownership else (0, 1)
        own = set(self._ownership.of(self._exchange.rank)) if self._ownership else None
        self._leaves = Leaves(self._parameters, self._layout, own)
        given = self._leaves.own or [self._leaves.nothing]
        self.optimizer = make_optimizer(given)
        check_taken(self.optimizer, given)
        self._digested = [*model.named_parameters(), *buffers]
        device = self._parameters[0].device
        self._devices = [device] if device.type == "cuda" else []
        self._lane_run = LaneRun(model, self._parameters)
        self._is_new = True
        self._is_in = self._is_over = False
        self._report: Report | None = None
        self._results: list[Any] = []  # of what the members found together since the last step: numbers and digests
        self._replayed = 0  # how many of these this member has had
        self._computed: dict[int, LaneOutcome] = {}  # the lanes of this step that this rank has computed
        self._kept: dict[range, KeptPiece] = {}  # pieces of this step from an epoch that is over
        if self._elastic is None:
            self._form(self._exchange, LaneShares.even(self._lanes, self._exchange.size))

    def _form(self, exchange: Exchange, shares: LaneShares) -> None:
        """Prepare the exchange of gradients between the members of an epoch, who have these shares of the lanes."""
        self._exchange = exchange
        extra = StepValues.length(self._lanes, exchange.size, self._buffers.integer_count)
        self._reducer = Reducer(
            self._layout,
            exchange,
            self._parameters[0].device,
            lanes=shares,
            ownership=self._ownership,
            borrows=True,
            extra=extra,
            paranoid=self._is_paranoid,
            keeps=self._elastic is not None,
        )
        self._values = StepValues(self._reducer.summary.extra, self._lanes, exchange.size)
        means = self._reducer.means()
        self._leaves.bind(means[: len(self._parameters)])
        self._mean_changes = means[len(self._parameters) :]
        self._lane_run.reducer = self._reducer

    def step(
        self,
        batches: Batches,
        samples: Callable[[int], tuple[int, ...]] = lambda _: (),
        *,
        wants_stop: bool = False,
    ) -> Report:
        """Take one step: compute this rank's lanes, and update the weights if the step counts on all ranks.

        ``samples`` returns the numbers of a lane's samples, for errors. If a gradient is not finite or weights differ,
        all ranks raise the same error and leave the weights as they were. ``wants_stop`` is reported to all ranks.
        """
        began_at = self.step_number

        def take() -> Report:
            if self._report and self.step_number > began_at:  # the others took it without this rank
                return self._report
            return self._step(batches, samples, wants_stop=wants_stop)

        return self._until_done(take)

    def train(
        self,
        batches: Callable[[int, int], Sequence[Batch]],
        steps: int,
        *,
        samples: Callable[[int, int], tuple[int, ...]] = lambda _, __: (),
        wants_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Report]:
        """Take steps until ``steps`` are taken or a rank wants to stop, and yield the report of each.

        ``batches`` and ``samples`` are given the step and the lane. A member that comes to an elastic run in the middle
        begins with the report of the last step, so that all members do the same behind each step.
        """
        if self._elastic:
            self._until_done(lambda: None)
            if self._report:
                yield self._report
        while self.step_number < steps and not (self._report and self._report.wants_stop):
            yield self.step(
                lambda lane: batches(self.step_number, lane),
                lambda lane: samples(self.step_number, lane),
                wants_stop=wants_stop(),
            )

    def _step(self, batches: Batches, samples: Callable[[int], tuple[int, ...]], *, wants_stop: bool) -> Report:
        clock = StepClock(lambda: self._exchange.waited_s)
        if self._is_paranoid:
            self._compare()
        with self._telling():
            self._compute(batches)
            digest = join(self._fingerprint())  # of what the step began with, while gradients travel
            self._values.set_digest(self._exchange.rank, digest)
            self._values.stops[:] = wants_stop
            clock.end_computing()
            norm = self._reducer.finish().norm
        loss = self._values.loss(self._reducer.counts)
        self._guard(norm, loss, batches, samples)
        if self._clip and (factor := clip_factor(norm, self._clip)) < 1:
            self._reducer.scale(factor)
        clock.end_exchange()
        (self._elastic or self._exchange).commit(loss, digest)
        clock.end_waiting()
        with self._telling():
            self._apply()
        self.step_number += 1
        self._report = Report(self.step_number - 1, loss, norm, digest, bool(self._values.stops[0]), *clock.read())
        self._forget_step()
        return self._report

    def evaluate(self, batches: Batches) -> float:
        """Return the mean loss over all lanes in eval mode, with the same bits for any number of ranks."""
        return self._together(lambda: self._evaluate(batches))

    def _evaluate(self, batches: Batches) -> float:
        found = np.zeros((2, self._lanes))
        with self._telling(), torch.no_grad(), evaluating(self.model):
            for lane in self._reducer.lanes:
                for batch in batches(lane):
                    total, count = split(self._loss(self.model, batch))
                    found[:, lane] += float(total), float(count)
        self._exchange.all_reduce(found.reshape(-1))
        totals, counts = found
        return math.fsum(totals) / math.fsum(counts) if np.isfinite(totals).all() else math.nan

    def compare(self) -> bytes:
        """Check that weights, buffers and optimizer state are equal on all ranks, and return a digest of all of it.

        If not, all ranks raise ``WeightsDiverged``. The digest is the same for any number of ranks. With ``zero`` only
        one rank has the optimizer state of a leaf, so the state is in the digest but cannot be compared.
        """
        return self._together(self._compare)

    def _compare(self) -> bytes:
        leaves = self._leaves.in_model_order()
        names = [name for name, _ in self._digested]
        prints = np.zeros((self._exchange.size, len(names) + len(leaves)))
        prints[self._exchange.rank] = [*self._fingerprint(), *fingerprint_state(self.optimizer.state, leaves)]
        self._exchange.all_reduce(prints.reshape(-1))
        if self._shard[1] > 1:
            prints[:, len(names) :] = prints[:, len(names) :].sum(0)
        if not (prints == prints[0]).all():
            names += [f"the optimizer state of {leaf.name}" for leaf in leaves]
            self._halt(diverged(self.step_number, names, prints))
        return join(prints[0].astype(int).tolist())

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the weights and buffers, and this rank's optimizer state, by name, for a checkpoint.

        With ``zero``, "shard" says whose part of the optimizer state it is. Leave it out when you join all parts.
        """
        rank, size = self._shard
        shard = {"shard": {"rank": torch.tensor(rank), "size": torch.tensor(size)}} if size > 1 else {}
        kept = gather(self.optimizer.state, self._leaves.own)
        return {"model": self.model.state_dict(), "optimizer": kept, **shard}

    def load_state(self, state: Mapping[str, Mapping[str, torch.Tensor]], step: int) -> None:
        """Load a state that ``state`` has returned on this rank, or the joined state of all ranks of any group.

        ``step`` is the next step. A shard of another rank is a ConfigError.
        """
        found = {key: int(value) for key, value in state.get("shard", {}).items()}
        if found and (found["rank"], found["size"]) != self._shard:
            raise ConfigError(
                f"this optimizer state is the shard of rank {found['rank']} of {found['size']}, and this is rank "
                f"{self._exchange.rank} of {self._exchange.size}: save with phalanx.train.checkpoint.save_together, "
                "which joins the shards of all ranks"
            )
        check_names(state["optimizer"], [spec.name for spec in self._layout.parameters])
        kept = scatter(state["optimizer"], self._leaves.own, on_device=wants_on_device(self.optimizer))
        self.model.load_state_dict(state["model"])
        self.optimizer.state.update(kept)
        self.step_number = step

    def close(self) -> None:
        """Take this engine's hooks off the model. Closing twice is harmless."""
        self._lane_run.close()

    # Epochs

    def _until_done(self, act: Callable[[], Result]) -> Result:
        """Act together with the other members; in an elastic run once more in every new epoch, until it succeeds."""
        if self._elastic is None:
            return act()
        while True:
            if self._is_over:
                self._elastic.next_group()  # raises the reason if the run is over, or this worker's part in it
                self._is_in = self._is_over = False
            try:
                if not self._is_in:
                    self._enter(self._elastic, self._elastic.group)
                    self._is_in = True
                return act()
            except ENDS_EPOCH as error:
                _log.info("epoch %d is over for step %d: %r", self._elastic.group.epoch, self.step_number, error)
                self._keep_lanes()
                self._is_over = True

    def _together(self, act: Callable[[], Result]) -> Result:
        """Return what the members find together behind a step. Who missed it is told at the start of an epoch."""

        def find() -> Result:
            if self._replayed == len(self._results):
                self._results.append(act())
            self._replayed += 1
            found: Result = self._results[self._replayed - 1]
            return found

        return self._until_done(find)

    def _enter(self, run: ElasticRun, group: Group) -> None:
        """Bring all members of an epoch to the same state, and prepare their exchange."""
        own = Stance(
            self.step_number,
            self._is_new,
            self._report,
            self._results,
            [lane for lanes in self._kept for lane in lanes],
            [_settings(each) for each in self.optimizer.param_groups],
            describe_state(self.optimizer, self._leaves.leaves),
            self.extra,
        )
        stances = tell(group, own)
        roles = choose_roles(stances)
        is_newcomer = group.rank in roles.newcomers
        try:
            compare(self._tensors, group)
        except ConfigError as error:
            if is_newcomer or roles.is_first:
                raise
            raise EpochChanged(f"a worker with another model came, and must go: {error}") from error
        if roles.newcomers:
            self._transfer(group, roles, stances[roles.source])
        elif roles.is_first:
            broadcast([tensor for _, tensor in self._tensors], group)
        if len(stances[roles.source].results) > len(self._results):
            self._results = stances[roles.source].results
        self._form(group, LaneShares.keeping(self._lanes, kept_lanes(stances)))
        if roles.newcomers:
            self._compare()
        self._is_new = False
        if run.is_known_to_hold < self.step_number:
            run.hold(self.step_number)

    def _transfer(self, group: Group, roles: Roles, source: Stance) -> None:
        """Give newcomers the state of those who hold it."""
        leaves, weights = self._leaves.leaves, [tensor.data for _, tensor in self._tensors]
        if group.rank not in roles.newcomers:
            transfer(group, roles, [*weights, *list_state(self.optimizer, leaves)])
            return
        kept = make_state(source.state, leaves, on_device=wants_on_device(self.optimizer))
        transfer(group, roles, [*weights, *kept])
        load_state(self.optimizer, leaves, source.state, kept)
        for one, settings in zip(self.optimizer.param_groups, source.settings, strict=True):
            one.update(settings)
        self.step_number, self._report, self.extra = source.step, source.report, source.extra
        self._forget_step()

    def _keep_lanes(self) -> None:
        """Keep what this rank has added up of the step that it is in, for the next epoch."""
        if not self._is_in or not all(lane in self._computed for lane in self._reducer.lanes):
            return
        for lanes, gradients in self._reducer.keep():
            outcomes = [self._computed[lane] for lane in lanes]
            counts, used = [each.count for each in outcomes], np.sum([each.used for each in outcomes], axis=0)
            self._kept[lanes] = KeptPiece(lanes, counts, used, gradients)

    def _forget_step(self) -> None:
        """Forget what belonged to a step that counts now."""
        self._computed.clear()
        self._kept.clear()
        self._results, self._replayed = [], 0

    # Lanes

    def _compute(self, batches: Batches) -> None:
        """Compute this rank's lanes, but those that it has kept. Buckets leave while the last lane is computed."""
        planned = self._reducer.begin(list(self._kept))
        self._lane_run.begin()
        self._buffers.begin()
        with torch.random.fork_rng(self._devices):
            for lanes in planned:
                if lanes in self._kept:
                    self._reducer.put_piece(self._kept[lanes])
                else:
                    self._computed[lanes.start] = self._compute_lane(lanes.start, batches)
        own = self._reducer.lanes
        self._values.totals[list(own)] = [float(self._computed[lane].total) for lane in own]
        if 0 in own:
            self._values.integers[:] = self._computed[0].integers

    def _compute_lane(self, lane: int, batches: Batches) -> LaneOutcome:
        torch.manual_seed(seed_of(self._seed, self.step_number, lane))
        used = self._reducer.summary.used.copy()
        try:
            total, count = self._lane_run.run(self._loss, batches(lane), lane)
            integers = np.zeros(self._buffers.integer_count)
            self._buffers.read_integers(integers)
            for number, change in enumerate(self._buffers.changes(), len(self._parameters)):
                self._reducer.put(number, change)
        finally:
            self._buffers.restore()
        return LaneOutcome(total, count, self._reducer.summary.used - used, integers)

    # Guard

    def _guard(self, norm: float, loss: float, batches: Batches, samples: Callable[[int], tuple[int, ...]]) -> None:
        """Halt all ranks unless their weights are equal and all values are finite."""
        if not self._reducer.counts.any():
            raise ConfigError(f"all lanes of step {self.step_number} count 0: there is nothing to take the mean of")
        if not self._values.has_one_digest:
            self._find_divergence()
        if (integrity := self._reducer.integrity) and (error := integrity.check(self.step_number)):
            self._halt(error)
        if not math.isfinite(norm) or not math.isfinite(loss):
            self._trace(batches, samples)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """If this rank's own program fails in this block, tell the other ranks why, so that they do not wait."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PhalanxError) and not isinstance(error, ConfigError):
                raise  # an error of the group, which all ranks get
            rank, step = self._exchange.rank, self.step_number
            words = "".join(traceback.format_exception(error))[-3000:]
            self._exchange.halt(RemoteError(f"rank {rank} failed at step {step}:\n{words}", step=step, rank=rank))
            raise

    def _halt(self, error: Halted) -> NoReturn:
        """Halt with an error that all ranks have found. They meet first, so that each one raises its own full error."""
        try:
            self._exchange.all_reduce(np.zeros(1))
            error = self._exchange.halt(error)
        except Halted as told:  # another rank was faster
            error = error.as_told(told)
        raise error

    def _fingerprint(self) -> list[int]:
        return fingerprints([tensor for _, tensor in self._digested])

    def _find_divergence(self) -> NoReturn:
        self._compare()
        words = f"the digests of ranks differed before step {self.step_number}, although their weights are equal"
        self._halt(WeightsDiverged(f"{words}: look for a machine whose memory fails", step=self.step_number))

    def _trace(self, batches: Batches, samples: Callable[[int], tuple[int, ...]]) -> NoReturn:
        """Find the lane and the parameter of a value that is not finite: each rank computes its lanes again."""
        found = np.zeros((self._exchange.size, 2))
        with torch.random.fork_rng(self._devices):
            for lane in reversed(self._reducer.lanes):
                torch.manual_seed(seed_of(self._seed, self.step_number, lane))
                number = self._lane_run.find_non_finite(self._loss, batches(lane))
                self._buffers.restore()
                if number is not None:
                    found[self._exchange.rank] = lane + 1, number + 1
        self._exchange.all_reduce(found.reshape(-1))
        guilty = [(int(lane) - 1, rank, int(number) - 1) for rank, (lane, number) in enumerate(found) if lane]
        layout = self._reducer.layout
        if guilty:
            lane, rank, number = min(guilty)
            name = layout.parameters[number].name if number >= 0 else None
            self._halt(non_finite(self.step_number, rank=rank, lane=lane, parameter=name, samples=samples(lane)))
        chunks = np.flatnonzero(~np.isfinite(self._reducer.summary.squares))
        name = layout.parameters[layout.parameter_of_chunk(int(chunks[0]))].name if len(chunks) else None
        self._halt(non_finite(self.step_number, rank=None, lane=None, parameter=name))

    def _apply(self) -> None:
        """Update weights and buffers, now that the step counts."""
        self._reducer.wait_for_copies()
        self._leaves.set_gradients((self._reducer.summary.used > 0).tolist())
        self.optimizer.step()
        if self._weights:
            for arrival in self._weights.begin():
                arrival.wait()
        self._buffers.apply(self._mean_changes, self._values.integers)


def _lanes_of(exchange: Exchange) -> int:
    if exchange.lanes is None:
        raise ConfigError("an engine takes steps in lanes: join the group with phalanx.connect(lanes=8), for example")
    return exchange.lanes


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:  # Any: as optimizers have them
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _check(named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
    if not named:
        raise ConfigError("this model has no parameters to train: set requires_grad on some")
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"{name} is {parameter.dtype}: an engine trains f32 weights; use torch.autocast in the loss"
            )


def _lay_out(
    named: Sequence[tuple[str, torch.nn.Parameter]],
    buffers: Sequence[ParameterSpec],
    buckets: Sequence[Sequence[str]] | None,
    *,
    is_sharded: bool,
) -> Layout:
    specs = [ParameterSpec(name, parameter.numel(), is_sharded=is_sharded) for name, parameter in named]
    if buckets is None:
        return lay_out([*specs, *buffers], _BUCKET_BYTES)
    numbers = {name: number for number, (name, _) in enumerate(named)}
    filled = [[numbers[name] for name in names if name in numbers] for names in buckets]
    last = [range(len(specs), len(specs) + len(buffers))] if buffers else []
    return arrange([*specs, *buffers], [*filled, *last])


def _share_out(exchange: Exchange, layout: Layout) -> Ownership:
    if not isinstance(exchange, Group):
        raise ConfigError(
            "workers that only reach a gradient server cannot share an optimizer: leave zero out, or connect them"
        )
    blocks = [block for bucket in layout.buckets if bucket.is_sharded for block in bucket.blocks]
    owners = share_blocks([block.stop - block.start for block in blocks], [0] * exchange.size)
    return Ownership(tuple(blocks), tuple(owners))
