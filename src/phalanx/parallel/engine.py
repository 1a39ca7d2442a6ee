"""The exact step: lanes, exchange, guard, commit, optimizer. The same bits however many workers there are."""

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np
import torch

from phalanx.errors import ConfigError, Halted, PhalanxError, RemoteError
from phalanx.group import Group
from phalanx.parallel.blocks import Blocks, Leaf
from phalanx.parallel.buffer_lanes import BufferLanes, list_buffers
from phalanx.parallel.clock import Clock
from phalanx.parallel.exchange import Exchange, GroupExchange, make_sharding
from phalanx.parallel.flat import Entry, Layout, arrange, lay_out
from phalanx.parallel.guard import RollingDigest, non_finite
from phalanx.parallel.lane_run import Batch, LaneRun, Loss, evaluating, split
from phalanx.parallel.lanes import Deposit, count_rows, own_lanes, plan_deposits, seed_of
from phalanx.parallel.state import check_names, gather, scatter, wants_on_device
from phalanx.parallel.summary import Shape, Summary
from phalanx.parallel.traffic import Traffic
from phalanx.parallel.weights import Weights

Batches = Callable[[int], Sequence[Batch]]
"""The batches of a lane, one after another: a function of the step and the lane alone, whoever asks."""

_BUCKET_ELEMENTS = 2**21


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a step. ``norm`` is that of the gradient before clipping; ``digest`` is of the weights before it.

    ``compute_s`` is spent on lanes and optimizer, ``wait_s`` on waiting for other ranks, ``exchange_s`` on the rest.
    """

    step: int
    loss: float
    norm: float
    digest: bytes
    wants_stop: bool
    compute_s: float
    exchange_s: float
    wait_s: float


class Engine:
    """Trains a model in exact lanes: a step is committed by all ranks, or done by none.

    ``make_optimizer`` gets the leaves to update, which are blocks of the parameters, and returns an element-wise
    optimizer of ``torch.optim`` over them. ``clip`` limits the norm of the gradient, 0 does not. ``buckets`` lists the
    names of the parameters that leave together, if not by size. With ``zero`` every rank gets the leaves of its own
    blocks only, so that it keeps only their state; the weights have the same bits.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        make_optimizer: Callable[[list[Leaf]], torch.optim.Optimizer],
        exchange: Exchange | Group,
        *,
        seed: int = 0,
        clip: float = 0.0,
        buckets: Sequence[Sequence[str]] | None = None,
        zero: bool = False,
    ) -> None:
        self.model = model
        self.step_number = 0
        """The next step."""
        self._loss = loss
        self._exchange = GroupExchange(exchange) if isinstance(exchange, Group) else exchange
        self._seed = seed
        self._clip = clip
        named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        _check(named)
        self._exchange.begin_alike([*model.named_parameters(), *model.named_buffers()])
        self._layout = _lay_out(named, buckets)
        sharding = make_sharding(self._exchange, self._layout) if zero else None
        self._weights = sharding and Weights(self._parameters, sharding.ownership, sharding.exchange.group)
        own = set(sharding.ownership.of(self._exchange.rank)) if sharding else None
        self._blocks = Blocks(self._parameters, self._layout, own)
        self.optimizer = make_optimizer(self._blocks.own or [self._blocks.nothing])
        self._digest = RollingDigest(self._blocks.in_model_order())
        self._own = own_lanes(self._exchange.lanes, self._exchange.size, self._exchange.rank)
        self._deposits = plan_deposits(self._own, self._exchange.lanes)
        self._buffers = BufferLanes(list_buffers(model))
        counts = self._layout.cuts, len(named), self._buffers.integer_count
        self._summary = Summary(Shape(*counts, lanes=self._exchange.lanes, size=self._exchange.size))
        device = self._parameters[0].device
        self._devices = [device] if device.type == "cuda" else []
        rows = count_rows(self._deposits)
        self._traffic = Traffic(
            self._exchange, self._layout.buckets, self._buffers.bucket, self._summary, rows, device, sharding
        )
        slots, is_direct = self._traffic.slots, self._traffic.is_direct
        self._blocks.bind([slot.result for slot in slots])
        self._run = LaneRun(model, self._parameters, self._layout, slots, self._traffic.let_leave, is_direct=is_direct)
        if isinstance(exchange, Group):
            exchange.on_close(self.close)

    def step(
        self,
        batches: Batches,
        samples: Callable[[int], tuple[int, ...]] = lambda _: (),
        *,
        wants_stop: bool = False,
    ) -> Report:
        """Take one step: compute this rank's lanes, and update the weights if the step counts for everybody.

        ``samples`` gives the numbers of a lane's samples, for errors. Raises the same error on every rank, with the
        weights untouched, if a gradient is not finite or weights differ. ``wants_stop`` is passed on to all ranks.
        """
        clock = Clock(self._exchange)
        digest = self._digest.digest(self.step_number)
        with self._telling():
            self._compute(batches)
            self._summary.set_digest(self._exchange.rank, digest)
            self._summary.used[:] = self._run.used
            self._summary.stops[:] = wants_stop
            clock.end_computing()
            self._traffic.share()
        self._guard(batches, samples)
        norm, loss = self._summary.norm, self._summary.loss
        if self._clip and (factor := self._clip / (norm + 1e-6)) < 1:  # as torch.nn.utils.clip_grad_norm_ does
            self._traffic.scale(factor)
        clock.end_exchange()
        self._exchange.commit(loss, digest)
        clock.end_waiting()
        with self._telling():
            self._apply()
        self.step_number += 1
        stops = bool(self._summary.stops[0])
        return Report(self.step_number - 1, loss, norm, digest, stops, *clock.read())

    def evaluate(self, batches: Batches) -> float:
        """The mean loss over all lanes' batches, without dropout; the same bits for any number of ranks."""
        shape = Shape(0, 0, 0, lanes=self._exchange.lanes, size=0)
        found = Summary(shape)
        with self._telling(), torch.no_grad(), evaluating(self.model):
            for lane in self._own:
                for batch in batches(lane):
                    total, count = split(self._loss(self.model, batch))
                    found.totals[lane] += float(total)
                    found.counts[lane] += float(count)
        self._exchange.add_up(found.row)
        return found.loss

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights with buffers, and what the optimizer keeps on this rank, both by name: what a checkpoint needs."""
        return {"model": self.model.state_dict(), "optimizer": gather(self.optimizer.state, self._blocks.own)}

    def load_state(self, state: Mapping[str, Mapping[str, torch.Tensor]], step: int) -> None:
        """Go on from what ``state`` gave, with ``step`` as the next step."""
        check_names(state["optimizer"], [entry.name for entry in self._layout.entries])
        kept = scatter(state["optimizer"], self._blocks.own, on_device=wants_on_device(self.optimizer))
        self.model.load_state_dict(state["model"])
        self.optimizer.state.update(kept)
        self.step_number = step

    def close(self) -> None:
        """End the exchanging thread. Closing twice is harmless."""
        self._traffic.close()

    # Lanes

    def _compute(self, batches: Batches) -> None:
        """Run this rank's lanes; buckets leave while the last one runs."""
        self._traffic.begin()
        self._run.begin()
        self._buffers.begin()
        with torch.random.fork_rng(self._devices):
            totals = [
                self._compute_lane(lane, deposit, batches)
                for lane, deposit in zip(self._own, self._deposits, strict=True)
            ]
        self._summary.totals[self._own.start : self._own.stop] = [float(total) for total in totals]

    def _compute_lane(self, lane: int, deposit: Deposit, batches: Batches) -> torch.Tensor:
        is_last = lane == self._own[-1]
        torch.manual_seed(seed_of(self._seed, self.step_number, lane))

        count = partial(self._traffic.count, lane, is_last=is_last)
        try:
            total = self._run.run(self._loss, batches(lane), deposit, count, is_last=is_last)
            if lane == 0:
                self._buffers.read_integers(self._summary.integers)
            if slot := self._traffic.buffer_slot:
                self._buffers.deposit(slot.rows, deposit)
                if is_last:
                    self._traffic.let_buffers_leave()
        finally:
            self._buffers.restore()
        return total

    # Guard

    def _guard(self, batches: Batches, samples: Callable[[int], tuple[int, ...]]) -> None:
        """Halt unless all ranks have the same weights, and all values are finite."""
        if not self._summary.counts.any():
            raise ConfigError(f"all lanes of step {self.step_number} count 0: there is nothing to take the mean of")
        if not self._summary.has_one_digest:
            self._find_divergence()
        if not math.isfinite(self._summary.norm) or not math.isfinite(self._summary.loss):
            self._trace(batches, samples)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """If this rank's own program fails in this block, have everybody hear why: they would wait for it in vain."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PhalanxError) and not isinstance(error, ConfigError):
                raise  # of the group: the others know
            rank, step = self._exchange.rank, self.step_number
            words = "".join(traceback.format_exception(error))[-3000:]
            self._exchange.halt(RemoteError(f"rank {rank} failed at step {step}:\n{words}", step=step, rank=rank))
            raise

    def _halt(self, error: Halted) -> NoReturn:
        """Stop, as all ranks do; but nobody says so before everybody knows all about it."""
        with suppress(Halted):  # another has met all and gone on
            self._exchange.add_up(np.zeros(1))
            self._exchange.halt(error)
        raise error

    def _find_divergence(self) -> NoReturn:
        sums = np.zeros((self._exchange.size, len(self._digest.section(self.step_number))))
        sums[self._exchange.rank] = self._digest.sums(self.step_number)
        self._exchange.add_up(sums.reshape(-1))
        self._halt(self._digest.diverged(self.step_number, sums))

    def _trace(self, batches: Batches, samples: Callable[[int], tuple[int, ...]]) -> NoReturn:
        """Find where a value that is not finite comes from: lanes repeat exactly, so each looks at its own again."""
        found = np.zeros((self._exchange.size, 2))
        with torch.random.fork_rng(self._devices):
            for lane in reversed(self._own):
                torch.manual_seed(seed_of(self._seed, self.step_number, lane))
                entry = self._run.find_non_finite(self._loss, batches(lane))
                self._buffers.restore()
                if entry is not None:
                    found[self._exchange.rank] = lane + 1, entry + 1
        self._exchange.add_up(found.reshape(-1))
        guilty = [(int(lane) - 1, rank, int(entry) - 1) for rank, (lane, entry) in enumerate(found) if lane]
        if guilty:
            lane, rank, entry = min(guilty)
            name = self._layout.entries[entry].name if entry >= 0 else "the loss"
            self._halt(non_finite(self.step_number, rank=rank, lane=lane, parameter=name, samples=samples(lane)))
        cuts = np.flatnonzero(~np.isfinite(self._summary.squares))
        name = self._layout.entry_of_cut(int(cuts[0])).name if len(cuts) else "the loss"
        self._halt(non_finite(self.step_number, rank=None, lane=None, parameter=name, samples=()))

    def _apply(self) -> None:
        """The step counts: update weights and buffers."""
        self._traffic.wait_until_back()
        self._blocks.set_gradients((self._summary.used > 0).tolist())
        self.optimizer.step()
        if self._weights:
            for arrival in self._weights.begin():
                arrival.wait()
        slot = self._traffic.buffer_slot
        self._buffers.apply(slot.result if slot else None, self._summary.integers)


def _check(named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
    if not named:
        raise ConfigError("this model has no parameters to train: set requires_grad on some")
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"{name} is {parameter.dtype}: an engine trains f32 weights; use torch.autocast in the loss"
            )


def _lay_out(named: Sequence[tuple[str, torch.nn.Parameter]], buckets: Sequence[Sequence[str]] | None) -> Layout:
    entries = [Entry(name, parameter.numel()) for name, parameter in named]
    if buckets is None:
        return lay_out(entries, _BUCKET_ELEMENTS)
    numbers = {name: number for number, (name, _) in enumerate(named)}
    return arrange(entries, [[numbers[name] for name in names if name in numbers] for names in buckets])
