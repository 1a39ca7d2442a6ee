"""Averaging gradients over all lanes of all ranks while backward goes on: the one road that every gradient takes."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from phalanx.buffers import Array, DType, LaneShares, even_part, plan_lanes
from phalanx.collectives import Finish
from phalanx.errors import ConfigError, PhalanxError
from phalanx.group import Group
from phalanx.parallel.reduction.allocation import allocate
from phalanx.parallel.reduction.bucket_exchange import BucketExchange, BucketTerms
from phalanx.parallel.reduction.device_arena import ArenaMemory
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.integrity import Integrity
from phalanx.parallel.reduction.lanes import Deposit, plan_deposits
from phalanx.parallel.reduction.layout import Bucket, Layout
from phalanx.parallel.reduction.memory import DeviceMemory, is_staged
from phalanx.parallel.reduction.ownership import Ownership
from phalanx.parallel.reduction.squares import Squares
from phalanx.parallel.reduction.summary import Summary
from phalanx.telemetry import OFF, Recorder
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
        is_checked = paranoid and exchange.size > 1
        self.summary = Summary(layout.chunks, len(layout.parameters), extra, has_prints=is_checked)
        self._exchange = exchange
        self._shares = LaneShares.even(lanes, exchange.size) if isinstance(lanes, int) else lanes
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
        owners = [_owners_of(bucket, ownership) for bucket in layout.buckets]
        self._added_here = [self._list_added(*each) for each in zip(layout.buckets, owners, strict=True)]
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
        told = np.zeros(self._shares.count + exchange.size)
        self._told = told
        self.counts: Array = told[: self._shares.count]
        """What each lane counts for; known when ``wait_for_counts`` returns."""
        self.active: Array = told[self._shares.count :]
        """For each rank, 1 if it computes lanes in this step and 0 if it only takes part."""
        self.integrity: Integrity | None = None
        if is_checked:
            if not isinstance(exchange, Group):
                raise ConfigError("only ranks of our own transports can check sums: leave paranoid out")
            self.integrity = Integrity(layout, self._memory, exchange, self._added_here, self.summary.prints)
        terms = BucketTerms(
            exchange,
            self._shares,
            self.counts,
            are_means=are_means,
            is_borrowing=self.is_borrowing,
            keeps=keeps,
            is_staged=self._is_staged,
            squares=self._squares,
            integrity=self.integrity,
            recorder=recorder,
        )
        self._buckets = self._make_buckets(terms, owners, wire)
        self._bucket_of = {each: number for number, one in enumerate(layout.buckets) for each in one.parameters}
        self._rows = {number: rows for bucket in self._buckets for number, rows in bucket.rows.items()}
        self._means: dict[int, torch.Tensor] = {}
        for bucket, memory in zip(layout.buckets, self._memory, strict=True):
            for parameter, place in zip(bucket.parameters, bucket.places, strict=True):
                self._means[parameter] = memory.mean[place]
        self._keeps = keeps
        self._failure: PhalanxError | None = None
        self._pending: list[Pending[Any]] = []  # Any: each has a result of its own type
        self._is_last = False
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
            whole = {number: each for bucket in self._buckets for number, each in bucket.borrowed.items()}
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
        if number not in self._buckets[self._bucket_of[number]].missing:
            raise ConfigError(
                f"{self.layout.parameters[number].name} got a second gradient in one step: a backward before this one "
                "failed half-way, or it is in two checkpoints; end this rank, or checkpoint with use_reentrant=False"
            )
        self.summary.used[number] += gradient is not None
        self._add(number, gradient)

    def missing(self) -> list[int]:
        """Return the parameters that this lane has not put yet, in the order in which they leave."""
        return [number for bucket in self._buckets for number in sorted(bucket.missing)]

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

    # A lane

    def _start(self, lanes: range, counts: Sequence[float], *, is_active: bool) -> None:
        self._deposit = self._deposits[lanes.start]
        self._is_last = lanes.start == self._last
        self.counts[lanes.start : lanes.stop] = counts
        for bucket in self._buckets:
            bucket.begin_lane()
        if self._is_last:
            self.active[self._exchange.rank] = is_active
            self._try(lambda: [self._exchange.all_reduce_nowait(self._told)])

    def _add(self, number: int, gradient: torch.Tensor | None) -> None:
        """Add a gradient to its bucket, and let every bucket leave that is complete with the last lane."""
        bucket = self._buckets[self._bucket_of[number]]
        bucket.add(number, self.layout.parameters[number].size, gradient, self._deposit)
        while self._is_last and self._left < len(self._buckets) and not self._buckets[self._left].missing:
            self._try(self._buckets[self._left].leave)
            self._left += 1

    def _try(self, act: Callable[[], list[Pending[Any]]]) -> None:
        """Queue calls, unless the group has failed: then a reducer that keeps its lanes only completes them."""
        if self._failure is not None:
            return
        try:
            self._pending += act()
        except PhalanxError as error:
            if not self._keeps:
                raise
            self._failure = error.with_traceback(None)  # whose frames would keep this reducer alive

    def _settle(self) -> None:
        """Wait until all means are there and measured: then no rank reads the pieces of another any more."""
        assert self._squares is not None
        self._squares.finish()
        for memory in self._memory[-1:]:  # they are made in order
            assert isinstance(memory, DeviceMemory | ArenaMemory)
            memory.wait_for_mean()

    # How it is made

    def _make_buckets(
        self, terms: BucketTerms, owners: Sequence[tuple[int, ...] | None], wire: DType | None
    ) -> list[BucketExchange]:
        return [
            BucketExchange(
                number,
                bucket,
                self._memory[number],
                terms,
                owners=owners[number],
                wire=wire,
                finish=self._make_finish(bucket, are_means=terms.are_means),
            )
            for number, bucket in enumerate(self.layout.buckets)
        ]

    def _make_finish(self, bucket: Bucket, *, are_means: bool) -> Finish:
        if bucket.is_buffer:
            return Finish(counts=np.array([float(self._shares.count)]))
        squares = self.summary.squares[bucket.first_chunk : bucket.first_chunk + len(bucket.chunks)]
        return Finish(counts=np.array([float(self._shares.count)]) if are_means else self.counts, squares=squares)

    def _list_added(self, bucket: Bucket, owners: tuple[int, ...] | None) -> frozenset[int]:
        """Return the chunks of a bucket that this rank adds up."""
        if owners is not None:
            return frozenset(index for index, owner in enumerate(owners) if owner == self._exchange.rank)
        return frozenset(self._exchange.blocks_added_here(len(bucket.chunks)))


def _owners_of(bucket: Bucket, ownership: Ownership | None) -> tuple[int, ...] | None:
    """Return the owner of each chunk of a bucket, None if all ranks get all of it."""
    if ownership is None or not bucket.is_sharded:
        return None
    return tuple(ownership.owner_at(parameter, start) for parameter, start in bucket.origins)
