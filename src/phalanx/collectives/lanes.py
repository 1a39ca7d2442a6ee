"""Adding up lanes: every rank brings its pieces, and the sum has the same bits however many ranks there are.

Who folds a block has the pieces of all ranks at hand, and combines them in the order of the tree over single lanes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from phalanx.buffers import Array, DType, even_part, even_parts, fold_pieces, pieces, round_to_bf16, widen_bf16
from phalanx.collectives import direct
from phalanx.collectives.blocks import Shard, broadcast_over_links, cut_shards, end_to_end, join_neighbours
from phalanx.collectives.call import Call
from phalanx.collectives.plan import length_of
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.shared import ArenaRunner
from phalanx.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """What the rank that adds up a block does with the sum while it is in cache, before anybody else sees it.

    It divides the sum by the total of ``counts`` (f64). They are read when the call's turn comes, so an earlier call in
    the queue may fill them. Then it writes the block's sum of squares into ``squares`` (f64, one for each block); those
    of blocks that other ranks add up are left alone.
    """

    counts: Array | None = None
    squares: Array | None = None

    @property
    def divisor(self) -> float | None:
        """The total of the counts; None if nothing is divided."""
        return None if self.counts is None else math.fsum(self.counts)


@dataclass(frozen=True, slots=True)
class LaneFold:
    """How the pieces of all ranks become one sum, block by block.

    Rank r makes an even part of the ``blocks``, and everybody gets all of them; or each block has its owner in
    ``owners``, who makes it and is the only one to get it. ``own`` has blocks of this rank's only piece that need not
    be in its row, by their numbers: this rank adds them up.
    """

    lanes: int
    blocks: Sequence[slice]
    finish: Finish = field(default_factory=Finish)
    wire: DType | None = None
    own: Mapping[int, Array] = field(default_factory=dict)
    owners: Sequence[int] | None = None

    @property
    def is_scattered(self) -> bool:
        """Whether a sum stays with who makes it."""
        return self.owners is not None

    def numbers(self, rank: int, size: int) -> Sequence[int]:
        """The blocks that ``rank`` adds up."""
        return list_added(len(self.blocks), self.owners, rank, size)

    def shards(self, size: int) -> list[Shard]:
        """The elements that each rank folds."""
        if self.owners is None:
            return [join_neighbours(self.blocks[part]) for part in even_parts(len(self.blocks), size)]
        return cut_shards(self.blocks, self.owners, size)

    def add_up(
        self, rank: int, size: int, rows: Sequence[Array], dtype: DType, out: Array, *, is_packed: bool = False
    ) -> None:
        """Write the sum of all ranks' rows into this rank's blocks of ``out``.

        Rows that are packed have nothing but those blocks, one after another.
        """
        spans = list_spans(self.lanes, size)
        numbers = self.numbers(rank, size)
        blocks = [self.blocks[number] for number in numbers]
        places = end_to_end(map(length_of, blocks)) if is_packed else blocks
        own_row = sum(count_pieces(self.lanes, size)[:rank])
        divisor, squares = self.finish.divisor, self.finish.squares
        for number, block, place in zip(numbers, blocks, places, strict=True):
            inputs = [row[place] for row in rows]
            if number in self.own:
                inputs[own_row] = self.own[number]
            square = fold_pieces(dtype, spans, inputs, out[block], divisor=divisor, is_measured=squares is not None)
            if squares is not None:
                squares[number] = square


def list_added(count: int, owners: Sequence[int] | None, rank: int, size: int) -> Sequence[int]:
    """Return the numbers of the blocks, of ``count``, that ``rank`` adds up: its own, or an even part of all."""
    if owners is None:
        return range(count)[even_part(count, size, rank)]
    return [number for number, owner in enumerate(owners) if owner == rank]


@lru_cache
def count_pieces(lanes: int, size: int) -> tuple[int, ...]:
    """How many pieces each of ``size`` ranks brings."""
    return tuple(len(each) for each in _pieces_by_rank(lanes, size))


@lru_cache
def list_spans(lanes: int, size: int) -> tuple[range, ...]:
    """The lanes of all pieces, in order."""
    return tuple(span for each in _pieces_by_rank(lanes, size) for span in each)


def fold_in_arena(runner: ArenaRunner, call: Call, own: Array, target: Array, fold: LaneFold) -> None:
    """Fold this rank's blocks of all pieces, which lie in the arena, straight into the target.

    All share the target, unless the sum is scattered. Nothing is copied, and nobody writes what another rank reads.
    Waiting is patient: this goes on beside backward, which needs the core more.
    """
    arena, dtype = runner.arena, call.signature.dtype
    location = arena.pool.locate(own)
    shared = None if fold.is_scattered else arena.pool.locate_shared(target)
    if len(target) and (location is None or not (shared or fold.is_scattered)):
        out = "" if fold.is_scattered else ", and out from group.allocate(..., shared=True)"
        raise ConfigError(f"pieces come from group.allocate(...){out}")
    agreement = runner.open(call, location, shared, is_patient=True)
    row_bytes = len(target) * dtype.itemsize
    rows: list[Array] = []
    for index, count in enumerate(count_pieces(fold.lanes, arena.size)):
        source = agreement.posts[index].source
        if index == arena.index:
            rows.extend(own.reshape(count, -1))
        elif source:
            shown = arena.pool.read(index, source, 0, count * row_bytes).view(dtype.numpy)
            rows.extend(shown.reshape(count, -1))
    fold.add_up(arena.index, arena.size, rows, dtype, target)
    runner.meet(call, is_patient=True)


def fold_over_links(runner: LinkRunner, call: Call, own: Array, target: Array, fold: LaneFold) -> None:
    """Send everybody its shard of the own pieces, fold this rank's of all, and collect the others' sums if need be."""
    rank, size = runner.rank, len(runner.links) + 1
    dtype = fold.wire or call.signature.dtype
    shards = fold.shards(size)
    rows = _collect(runner, call, own, fold, shards, dtype)
    sums = target if fold.wire is None else np.empty(len(target), dtype.numpy)
    fold.add_up(rank, size, list(rows), dtype, sums, is_packed=True)
    if not fold.is_scattered:
        broadcast_over_links(runner, call, sums, shards, dtype)
    if fold.wire is not None:
        for each in shards[rank] if fold.is_scattered else itertools.chain.from_iterable(shards):
            widen_bf16(sums[each], target[each])


def _collect(
    runner: LinkRunner, call: Call, own: Array, fold: LaneFold, shards: Sequence[Shard], dtype: DType
) -> Array:
    """This rank's shard of all pieces, packed, one row a piece."""
    rank, counts = runner.rank, count_pieces(fold.lanes, len(shards))
    own_rows = own.reshape(counts[rank], -1)
    for number, values in fold.own.items():
        own_rows[0, fold.blocks[number]] = values
    cut = [_narrow(fold.wire, row[each]) for shard in shards for row in own_rows for each in shard]
    leaving = np.concatenate([np.empty(0, dtype.numpy), *cut])  # there may be no block at all
    lengths = [sum(map(length_of, shard)) for shard in shards]
    outbound = end_to_end(counts[rank] * length for length in lengths)
    inbound = end_to_end(count * lengths[rank] for count in counts)
    arrived = np.empty(inbound[-1].stop, dtype.numpy)
    arrived[inbound[rank]] = leaving[outbound[rank]]
    runner.run(direct.all_to_all(rank, outbound, inbound), call, leaving, arrived, dtype)
    return arrived.reshape(sum(counts), lengths[rank])


def _pieces_by_rank(lanes: int, size: int) -> list[tuple[range, ...]]:
    owned = [even_part(lanes, size, rank) for rank in range(size)]
    return [pieces(each.start, each.stop, lanes) for each in owned]


def _narrow(wire: DType | None, values: Array) -> Array:
    if wire is None:
        return values
    narrow = np.empty(len(values), np.uint16)
    round_to_bf16(values, narrow)
    return narrow
