"""Adding up lanes: every rank brings its pieces, and the sum has the same bits however many ranks there are.

Who folds a block has the pieces of all ranks at hand, and combines them in the order of the tree over single lanes.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from phalanx.buffers import Array, DType, even_part, fold_pieces, pieces, round_to_bf16, widen_bf16
from phalanx.collectives import direct
from phalanx.collectives.call import Call
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.shared import ArenaRunner
from phalanx.errors import ConfigError

Finish = Callable[[int, Array], None]
"""Called with the number of a block and its sum, where that is made and while it is in cache; it may change it."""


class Row(Protocol):
    """Elements of a piece, wherever they lie; asked only for the blocks that this rank folds."""

    def __getitem__(self, block: slice) -> Array: ...


@dataclass(frozen=True, slots=True)
class LaneFold:
    """How the pieces of all ranks become one sum, block by block: rank r makes an even part of the ``blocks``.

    ``own`` has this rank's only piece as far as this rank folds it; then only what others fold needs to be shown.
    """

    lanes: int
    blocks: Sequence[slice]
    finish: Finish | None = None
    wire: DType | None = None
    own: Row | None = None

    def numbers(self, rank: int, size: int) -> slice:
        """The blocks that ``rank`` folds."""
        return even_part(len(self.blocks), size, rank)

    def part(self, rank: int, size: int) -> slice:
        """The elements that ``rank`` folds."""
        blocks = self.blocks[self.numbers(rank, size)]
        return slice(blocks[0].start, blocks[-1].stop) if blocks else slice(0, 0)

    def add_up(self, rank: int, size: int, rows: Sequence[Row], dtype: DType, out: Array, start: int = 0) -> None:
        """Write the sum of all ranks' rows into this rank's blocks of ``out``; the rows begin at element ``start``."""
        spans = list_spans(self.lanes, size)
        numbers = self.numbers(rank, size)
        for number, block in enumerate(self.blocks[numbers], numbers.start):
            local = slice(block.start - start, block.stop - start)
            look = None if self.finish is None else _look_at(self.finish, number)
            fold_pieces(dtype, spans, [row[local] for row in rows], out[block], look)


@lru_cache
def count_pieces(lanes: int, size: int) -> tuple[int, ...]:
    """How many pieces each of ``size`` ranks brings."""
    return tuple(len(each) for each in _pieces_by_rank(lanes, size))


@lru_cache
def list_spans(lanes: int, size: int) -> tuple[range, ...]:
    """The lanes of all pieces, in order."""
    return tuple(span for each in _pieces_by_rank(lanes, size) for span in each)


def fold_in_arena(runner: ArenaRunner, call: Call, own: Array, target: Array, fold: LaneFold) -> None:
    """Fold this rank's blocks of all pieces, which lie in the arena, straight into the shared target.

    Nothing is copied, and nobody writes what another rank shows. Waiting is patient: this goes on beside backward,
    which needs the core more.
    """
    arena, dtype = runner.arena, call.signature.dtype
    location, shared = arena.shelf.locate(own), arena.shelf.locate_shared(target)
    if location is None or shared is None:
        raise ConfigError("pieces come from group.allocate(...), and out from group.allocate(..., shared=True)")
    agreement = runner.open(call, location, shared, is_patient=True)
    row_bytes = len(target) * dtype.itemsize
    rows: list[Row] = []
    for index, count in enumerate(count_pieces(fold.lanes, arena.size)):
        source = agreement.posts[index].source
        if index == arena.index:
            rows.extend(own.reshape(count, -1) if fold.own is None else [fold.own])
        elif source:
            shown = arena.shelf.read(index, source, 0, count * row_bytes).view(dtype.numpy)
            rows.extend(shown.reshape(count, -1))
    fold.add_up(arena.index, arena.size, rows, dtype, target)
    runner.meet(call, is_patient=True)


def fold_over_links(runner: LinkRunner, call: Call, own: Array, target: Array, fold: LaneFold) -> None:
    """Send everybody its part of the own pieces, fold this rank's part of all, and collect the others' sums."""
    rank, size = runner.rank, len(runner.links) + 1
    dtype = fold.wire or call.signature.dtype
    parts = [fold.part(each, size) for each in range(size)]
    own_rows = own.reshape(count_pieces(fold.lanes, size)[rank], -1)
    if fold.own is not None:
        for block in fold.blocks[fold.numbers(rank, size)]:
            own_rows[0, block] = fold.own[block]
    leaving = np.concatenate([_narrow(fold.wire, own_rows[:, part].reshape(-1)) for part in parts])
    outbound = _parts([len(own_rows) * (part.stop - part.start) for part in parts])
    length = parts[rank].stop - parts[rank].start
    inbound = _parts([count * length for count in count_pieces(fold.lanes, size)])
    arrived = np.empty(inbound[-1].stop, dtype.numpy)
    arrived[inbound[rank]] = leaving[outbound[rank]]
    runner.run(direct.all_to_all(rank, outbound, inbound), call, leaving, arrived, dtype)

    sums = target if fold.wire is None else np.empty(len(target), dtype.numpy)
    fold.add_up(rank, size, list(arrived.reshape(-1, length)) if length else [], dtype, sums, parts[rank].start)
    runner.run(direct.all_gather(rank, parts), call, sums, sums, dtype)
    if fold.wire is not None:
        widen_bf16(sums, target)


def _pieces_by_rank(lanes: int, size: int) -> list[tuple[range, ...]]:
    owned = [even_part(lanes, size, rank) for rank in range(size)]
    return [pieces(each.start, each.stop, lanes) for each in owned]


def _look_at(finish: Finish, number: int) -> Callable[[Array], None]:
    return lambda values: finish(number, values)


def _narrow(wire: DType | None, values: Array) -> Array:
    if wire is None:
        return values
    narrow = np.empty(len(values), np.uint16)
    round_to_bf16(values, narrow)
    return narrow


def _parts(lengths: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *lengths]).tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]
