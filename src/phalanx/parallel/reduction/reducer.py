"""Averaging gradients over all lanes of all ranks while backward goes on: the one road that every gradient takes."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from phalanx.buffers import Array, DType, LaneShares, even_part, plan_lanes
from phalanx.collectives import Finish
from phalanx.errors import ConfigError, PhalanxError
from phalanx.group import Group
from phalanx.parallel.reduction.allocation import allocate
from phalanx.parallel.reduction.device_arena import ArenaMemory
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.integrity import Integrity
from phalanx.parallel.reduction.lanes import Deposit, plan_deposits
from phalanx.parallel.reduction.layout import Bucket, Layout
from phalanx.parallel.reduction.memory import DeviceMemory, ResidentMemory, as_tensor, is_staged
from phalanx.parallel.reduction.ownership import Ownership
from phalanx.parallel.reduction.squares import Squares
from phalanx.parallel.reduction.summary import Summary
from phalanx.telemetry import OFF, Activity, Recorder
from phalanx.transport import Pending


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """The sum of some lanes that this rank has computed in an epoch that is over.

    ``gradients`` has the sum for each parameter, ``used`` how many of the lanes gave it a gradient, and ``counts`` what
    each lane counts for.
    """

    lanes: range
    counts: Sequence[float]
    used: Array
    gradients: Sequence[torch.Tensor]


class Reducer:
    """The gradients of some parameters, and the buffers that are averaged with them, on their way to their mean.

    A step is ``begin``, then ``start_lane`` and ``put`` for every lane of this rank, then ``finish``. A bucket leaves
    as soon as the last lane has filled it and those before it have left, so the order is the same on all ranks. All
    exchanges run in the thread of the ``exchange``.

    Gradients of a lane are totals: their sum over all lanes is divided by the sum of all counts. If they ``are_means``,
    each lane's gradients are multiplied by its count first. With an ``ownership`` the mean of a sharded parameter
    reaches only the owners of its blocks. ``borrows`` says that nobody changes a gradient after ``put``, so that it can
    be read where it is. ``extra`` is how many values the caller adds to the summary. A ``paranoid`` reducer of several
    ranks has an ``integrity``, which checks every exchange.

    If the reducer ``keeps``, a failure of the group in the middle of a step is raised by ``finish`` only, when all
    lanes of this rank are complete: what it then ``keep``s can be put into the reducer of the next epoch.

    On a GPU gradients meet there if they can, unless they shall go ``through_host``; ``route`` says where and why.
    """

    def __init__(
        self,
        layout: Layout,
        exchange: Exchange,
        device: torch.device,
        *,
        lanes: int | LaneShares,
        ownership: Ownership | None = None,
        wire: DType | None = None,
        are_means: bool = False,
        borrows: bool = False,
        extra: int = 0,
        paranoid: bool = False,
        keeps: bool = False,
        recorder: Recorder = OFF,
        through_host: bool = False,
    ) -> None:
        self.layout = layout
        self._recorder = recorder
        is_checked = paranoid and exchange.size > 1
        self.summary = Summary(layout.chunks, len(layout.parameters), extra, has_prints=is_checked)
        self._exchange = exchange
        self._shares = LaneShares.even(lanes, exchange.size) if isinstance(lanes, int) else lanes
        self._are_means = are_means
        self._is_staged = is_staged(device)
        is_one_lane_each = 1 < self._shares.count == exchange.size and isinstance(exchange, Group)
        self.is_borrowing = borrows and is_one_lane_each and not self._is_staged and not is_checked
        """Whether this rank reads its own gradients where they are, and copies only what others of its host add up."""
        self.lanes = self._shares.by_rank[exchange.rank]
        """The lanes that this rank computes."""
        self._pieces = self._shares.pieces(exchange.rank)
        self._deposits: dict[int, Deposit] = {}  # by the first lane of a piece
        self._deposit = plan_deposits(plan_lanes(self.lanes, ()), self._shares.count)[0]
        self._last = 0  # the first lane of what this rank puts last
        self._owners = [_owners_of(bucket, ownership) for bucket in layout.buckets]
        self._added_here = [self._list_added(number) for number in range(len(layout.buckets))]
        self.route, self._memory = allocate(
            layout.buckets,
            self._shares,
            exchange,
            device,
            self._added_here,
            is_borrowing=self.is_borrowing,
            is_elastic=keeps,
            is_left_out=through_host,
            is_checked=is_checked,
        )
        self._squares: Squares | None = None
        if any(isinstance(memory, DeviceMemory | ArenaMemory) for memory in self._memory):
            self._squares = Squares(layout, self._added_here, self.summary.squares, device)
        self._bucket_of: dict[int, int] = {}
        self._rows: dict[int, tuple[torch.Tensor, ...]] = {}  # of each parameter, as flat views: making one takes long
        self._means: dict[int, torch.Tensor] = {}
        for number, (bucket, memory) in enumerate(zip(layout.buckets, self._memory, strict=True)):
            for parameter, place in zip(bucket.parameters, bucket.places, strict=True):
                self._bucket_of[parameter] = number
                self._rows[parameter] = memory.pieces[:, place].unbind()
                self._means[parameter] = memory.mean[place]
        self._wires = [wire if bucket.dtype is DType.F32 else None for bucket in layout.buckets]
        told = np.zeros(self._shares.count + exchange.size)
        self._told = told
        self.counts: Array = told[: self._shares.count]
        """What each lane counts for; known when ``wait_for_counts`` returns."""
        self.active: Array = told[self._shares.count :]
        """For each rank, 1 if it computes lanes in this step and 0 if it only takes part."""
        self._finishes = [self._make_finish(bucket) for bucket in layout.buckets]
        self.integrity: Integrity | None = None
        if is_checked:
            if not isinstance(exchange, Group):
                raise ConfigError("only ranks of our own transports can check sums: leave paranoid out")
            self.integrity = Integrity(layout, self._memory, exchange, self._added_here, self.summary.prints)
        self._keeps = keeps
        self._failure: PhalanxError | None = None
        self._pending: list[Pending[Any]] = []  # Any: each has a result of its own type
        self._is_last = False
        self._missing: list[set[int]] = []
        self._borrowed: list[dict[int, torch.Tensor]] = []
        self._left = 0

    # A step

    def begin(self, kept: Sequence[range] = ()) -> list[range]:
        """Start a step, and return what this rank puts, in order: single lanes, and pieces of those that were ``kept``.

        A step that was not finished is forgotten.
        """
        self.summary.clear()
        self._told.fill(0.0)
        self._pending.clear()
        self._failure = None
        self._left = 0
        if self.integrity:
            self.integrity.begin()
        if self._squares:
            self._squares.begin()
        planned = plan_lanes(self.lanes, kept)
        deposits = plan_deposits(planned, self._shares.count)
        self._last = planned[-1].start
        self._deposits = {each.start: deposit for each, deposit in zip(planned, deposits, strict=True)}
        return planned

    def start_lane(self, lane: int, count: float, *, is_active: bool = True) -> None:
        """Start a lane of this rank, which counts ``count`` times; all ranks' counts leave with the last lane."""
        self._start(range(lane, lane + 1), [count], is_active=is_active)

    def put_piece(self, piece: KeptPiece) -> None:
        """Put a piece that an earlier reducer of this rank had in the same step."""
        self._start(piece.lanes, piece.counts, is_active=True)
        self.summary.used += piece.used
        for number, gradient in enumerate(piece.gradients):
            self._add(number, gradient)

    def keep(self) -> list[tuple[range, list[torch.Tensor]]]:
        """Return the lanes of each piece of this rank, and its sum of the gradients of every parameter."""
        if self._exchange.size == 1:
            return []  # the mean has replaced them
        if self.is_borrowing:
            whole = {number: each for borrowed in self._borrowed for number, each in borrowed.items()}
            return [(self._pieces[0], [whole[number] for number in range(len(self._rows))])]
        return [
            (piece, [self._rows[number][row] for number in range(len(self._rows))])
            for row, piece in enumerate(self._pieces)
        ]

    def wait_for_counts(self) -> None:
        """Wait until this rank knows the counts of all lanes."""
        self._pending[0].wait()  # the call has a deadline

    def put(self, number: int, gradient: torch.Tensor | None) -> None:
        """Add this lane's gradient of a parameter, None if it has none, and let every bucket leave that is complete."""
        bucket = self._bucket_of[number]
        if number not in self._missing[bucket]:
            raise ConfigError(
                f"{self.layout.parameters[number].name} got a second gradient in one step: a backward before this one "
                "failed half-way, or it is in two checkpoints; end this rank, or checkpoint with use_reentrant=False"
            )
        self.summary.used[number] += gradient is not None
        self._add(number, gradient)

    def missing(self) -> list[int]:
        """Return the parameters that this lane has not put yet, in the order in which they leave."""
        return [number for bucket in self._missing for number in sorted(bucket)]

    def finish(self) -> Summary:
        """Exchange the summary behind all buckets, wait for everything, and return the summary of all ranks."""
        if self._failure:
            raise copy.copy(self._failure)
        if self._squares:
            self._pending.append(self._exchange.enqueue("the norm of a step", self._settle))
        self._pending.append(self._exchange.all_reduce_nowait(self.summary.row))
        for pending in self._pending:
            pending.wait()  # its call has a deadline
        return self.summary

    def explain(self) -> str:
        """Return where gradients meet, and why."""
        if self.route is not None:
            return str(self.route)
        return "gradients stay in memory of the host" if not self._is_staged else "gradients leave the GPU"

    # The mean

    def means(self) -> list[torch.Tensor]:
        """Return a flat view of the mean of every parameter. The ranks of a host may share it: change it by ``scale``.

        Of a sharded parameter only the blocks that this rank owns are there.
        """
        return [self._means[number] for number in range(len(self._means))]

    def own_means(self) -> list[torch.Tensor]:
        """Return a flat view of the mean of every parameter, in memory that this rank may change at will."""
        self.wait_for_copies()
        for memory, bucket in zip(self._memory, self.layout.buckets, strict=True):
            if self._is_mean_shared(bucket):
                memory.pieces[0].copy_(memory.mean)
        return self.own_places()

    def own_places(self) -> list[torch.Tensor]:
        """Return the memory that ``own_means`` returns, before the means are there."""
        return [
            self._rows[number][0] if self._is_mean_shared(self.layout.buckets[bucket]) else self._means[number]
            for number, bucket in sorted(self._bucket_of.items())
        ]

    def contribution(self, number: int) -> torch.Tensor:
        """Return what this rank's only lane gave for a parameter: a flat view that lasts until ``own_means``."""
        return self._rows[number][0]

    def scale(self, factor: float) -> None:
        """Multiply all mean gradients. The ranks of a host share the work, and see all of it at their next meeting."""
        position, ranks = self._exchange.host_position
        for bucket, memory, added in zip(self.layout.buckets, self._memory, self._added_here, strict=True):
            if bucket.is_buffer:
                continue
            if self._is_staged:
                memory.wait_for_copy_in()
                memory.mean.mul_(factor)
                continue
            chunks: Sequence[slice] = bucket.chunks
            if bucket.is_sharded:
                chunks = [chunks[number] for number in added]
            elif self._is_mean_shared(bucket):
                chunks = chunks[even_part(len(chunks), ranks, position)]
            for chunk in chunks:
                memory.host_mean[chunk] *= np.float32(factor)

    def wait_for_copies(self) -> None:
        """Make what this thread does next wait until all means are on the model's device."""
        for memory in () if self._squares else self._memory:  # else ``finish`` has waited for them
            memory.wait_for_copy_in()

    def _is_mean_shared(self, bucket: Bucket) -> bool:
        is_host_shared = self._exchange.size > 1 and self._exchange.host_position[1] > 1
        return is_host_shared and not bucket.is_sharded and not self._is_staged

    # One bucket

    def _start(self, lanes: range, counts: Sequence[float], *, is_active: bool) -> None:
        self._deposit = self._deposits[lanes.start]
        self._is_last = lanes.start == self._last
        self.counts[lanes.start : lanes.stop] = counts
        self._missing = [set(bucket.parameters) for bucket in self.layout.buckets]
        self._borrowed = [{} for _ in self.layout.buckets]
        if self._is_last:
            self.active[self._exchange.rank] = is_active
            self._try(self._tell_counts)

    def _add(self, number: int, gradient: torch.Tensor | None) -> None:
        """Add a gradient to its row, and let every bucket leave that is complete with the last lane."""
        bucket = self._bucket_of[number]
        if self.is_borrowing:
            size = self.layout.parameters[number].size
            self._borrowed[bucket][number] = torch.zeros(size) if gradient is None else gradient
        else:
            self._store(self._rows[number], gradient)
        self._missing[bucket].discard(number)
        while self._is_last and self._left < len(self._missing) and not self._missing[self._left]:
            self._try(partial(self._let_leave, self._left))
            self._left += 1

    def _try(self, act: Callable[[], None]) -> None:
        """Act, unless the group has failed: then a reducer that keeps its lanes only completes them."""
        if self._failure is not None:
            return
        try:
            act()
        except PhalanxError as error:
            if not self._keeps:
                raise
            self._failure = error.with_traceback(None)  # whose frames would keep this reducer alive

    def _tell_counts(self) -> None:
        self._pending.append(self._exchange.all_reduce_nowait(self._told))

    def _store(self, rows: Sequence[torch.Tensor], gradient: torch.Tensor | None) -> None:
        """Store a gradient in a row, or add it to one. A missing one counts as zeros: adding these turns -0 into 0."""
        deposit = self._deposit
        row = rows[deposit.row]
        if gradient is None:
            row.add_(0.0) if deposit.is_added else row.zero_()
        elif deposit.is_added:
            row.add_(gradient.view(-1) if gradient.is_contiguous() else gradient.reshape(-1))
        elif gradient.data_ptr() != row.data_ptr():
            row.view(gradient.shape).copy_(gradient)
        for left, right in deposit.merges:
            rows[left].add_(rows[right])

    def _let_leave(self, number: int) -> None:
        self._recorder.record(Activity.READY, time.monotonic_ns(), number)
        bucket, memory = self.layout.buckets[number], self._memory[number]
        values, own = self._lend(number) if self.is_borrowing else ({}, None)
        memory.start_copy_out()
        self._pending.append(self._exchange.enqueue("the staging of a bucket", self._stage, number, values))
        leaving, finish = memory.host_pieces[: len(self._pieces)], self._host_finish(number)
        lanes, chunks, wire, owners = self._shares, bucket.chunks, self._wires[number], self._owners[number]
        if self.integrity:
            shown = as_tensor(leaving, memory.mean.dtype)
            self._pending.append(self._exchange.enqueue("the seal of a bucket", self.integrity.seal, number, shown))
        if isinstance(memory, ArenaMemory):
            assert isinstance(self._exchange, Group), "only ranks of a group meet on a GPU"
            pending: Pending[Any] = self._exchange.barrier_nowait()  # every rank has said that its pieces are there
        elif isinstance(memory, ResidentMemory):
            pieces = memory.pieces[: len(self._pieces)]
            pending = memory.exchange.fold_tensors_nowait(
                pieces, memory.mean, lanes=lanes, blocks=chunks, finish=finish
            )
        elif owners is None:
            pending = self._exchange.fold_lanes_nowait(
                leaving, memory.host_mean, lanes=lanes, blocks=chunks, finish=finish, wire=wire, own=own
            )
        else:
            assert isinstance(self._exchange, Group), "only ranks that reach each other own blocks"
            pending = self._exchange.scatter_lanes_nowait(
                leaving, memory.host_mean, lanes=lanes, blocks=chunks, owners=owners, finish=finish, wire=wire, own=own
            )
        self._pending.append(pending)
        if self.integrity:
            if (again := self.integrity.add_up_again(number, leaving, lanes, finish)) is not None:
                self._pending.append(again)
            self._pending.append(self._exchange.enqueue("the check of a bucket", self.integrity.tell, number, shown))
        if self._is_staged:
            self._pending.append(self._exchange.enqueue("the return of a bucket", self._bring_back, number))

    def _lend(self, number: int) -> tuple[dict[int, Array], dict[int, Array]]:
        """Return the chunks of a bucket's gradients that others of this host add up, and those that this rank does."""
        assert isinstance(self._exchange, Group), "only ranks that reach each other borrow"
        bucket, owners = self.layout.buckets[number], self._owners[number]
        added = frozenset(self._exchange.blocks_added_first(len(bucket.chunks), owners))
        flat = {parameter: _flatten(gradient) for parameter, gradient in self._borrowed[number].items()}
        if not self._keeps:
            self._borrowed[number] = {}
        others: dict[int, Array] = {}
        own: dict[int, Array] = {}
        for index, (chunk, (parameter, start)) in enumerate(zip(bucket.chunks, bucket.origins, strict=True)):
            (own if index in added else others)[index] = flat[parameter][start : start + chunk.stop - chunk.start]
        return others, own

    def _stage(self, number: int, borrowed: Mapping[int, Array]) -> None:
        """Bring the pieces of a bucket to where other ranks see them; runs in the exchange's thread."""
        self._recorder.about(number)
        bucket, memory = self.layout.buckets[number], self._memory[number]
        memory.wait_for_copy_out()
        for index, values in borrowed.items():
            memory.host_pieces[0, bucket.chunks[index]] = values
        if self._are_means and not bucket.is_buffer:
            total = float(self.counts.sum())
            scale = float(self.counts[self._exchange.rank]) * len(self.counts) / total if total else 0.0
            if not isinstance(memory, ArenaMemory):
                self._weigh(as_tensor(memory.host_pieces, memory.mean.dtype), scale)
            elif scale != 1:
                with torch.cuda.stream(memory.stream):
                    self._weigh(memory.pieces, scale)
                    memory.publish()

    def _bring_back(self, number: int) -> None:
        """Let the mean of a bucket be made on its device, and measured there; runs in the exchange's thread."""
        memory = self._memory[number]
        if isinstance(memory, DeviceMemory | ArenaMemory):
            assert self._squares is not None
            divisor = None if self._is_divided_on_host(number) else self._finishes[number].divisor
            with torch.cuda.stream(memory.stream):
                memory.make_mean(divisor)
                self._squares.measure(number, memory.padded_mean)
                memory.start_copy_in()
        else:
            memory.start_copy_in()

    def _settle(self) -> None:
        """Wait until all means are there and measured: then no rank reads the pieces of another any more."""
        assert self._squares is not None
        self._squares.finish()
        for memory in self._memory[-1:]:  # they are made in order
            assert isinstance(memory, DeviceMemory | ArenaMemory)
            memory.wait_for_mean()

    @staticmethod
    def _weigh(leaving: torch.Tensor, scale: float) -> None:
        """Multiply this rank's gradients by how often they are in the sum, which is then divided by the ranks."""
        if scale == 0:
            leaving.zero_()  # times 0 is not enough for what is not finite
        elif scale != 1:
            leaving.mul_(scale)

    def _make_finish(self, bucket: Bucket) -> Finish:
        if bucket.is_buffer:
            return Finish(counts=np.array([float(self._shares.count)]))
        squares = self.summary.squares[bucket.first_chunk : bucket.first_chunk + len(bucket.chunks)]
        return Finish(counts=np.array([float(self._shares.count)]) if self._are_means else self.counts, squares=squares)

    def _host_finish(self, number: int) -> Finish:
        """Return what the CPU does with the sums of a bucket: on a GPU, as little as it can."""
        finish = self._finishes[number]
        if self._squares is None:
            return finish
        return Finish(counts=finish.counts if self._is_divided_on_host(number) else None)

    def _is_divided_on_host(self, number: int) -> bool:
        """Return whether the mean is rounded on the host, so that the sum has to be divided there before."""
        is_narrow = self.layout.buckets[number].dtype.is_narrow or self._wires[number] is not None
        return is_narrow and isinstance(self._memory[number], DeviceMemory)

    def _list_added(self, number: int) -> frozenset[int]:
        """Return the chunks of a bucket that this rank adds up."""
        owners, count = self._owners[number], len(self.layout.buckets[number].chunks)
        if owners is not None:
            return frozenset(index for index, owner in enumerate(owners) if owner == self._exchange.rank)
        return frozenset(self._exchange.blocks_added_here(count))


def _owners_of(bucket: Bucket, ownership: Ownership | None) -> tuple[int, ...] | None:
    """Return the owner of each chunk of a bucket, None if all ranks get all of it."""
    if ownership is None or not bucket.is_sharded:
        return None
    return tuple(ownership.owner_at(parameter, start) for parameter, start in bucket.origins)


def _flatten(gradient: torch.Tensor) -> Array:
    flat: Array = gradient.detach().reshape(-1).numpy()
    return flat
