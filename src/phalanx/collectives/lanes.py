"""Adding up lanes: every rank contributes its pieces, and the sum has the same bits for any number of ranks.

The rank that adds up a block has the pieces of all ranks, or of whole hosts. It adds them in the order of the tree over
single lanes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phalanx.buffers import Array, DType, LaneShares, ReduceOp, finish, fold_pieces, round_to_bf16, widen, widen_bf16
from phalanx.collectives.streaming import Chunk
from phalanx.collectives.topology import (
    HostPiece,
    RankPiece,
    Topology,
    owners_of,
    pieces_by_host,
    stand_ins,
)


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """What the rank that adds up a block does with the sum while it is in cache, before other ranks get it.

    The rank divides the sum by the total of ``counts`` (f64). It reads ``counts`` when it performs the call, so an
    earlier call in the queue may fill them. Then it writes the block's sum of squares into ``squares`` (f64, one for
    each block). It does not change the squares of blocks that other ranks add up.
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

    Without ``owners``, the ranks share the work of adding up the ``blocks``, and every rank gets all sums. With
    ``owners``, the owner of a block adds it up, and only the owner gets the sum. A rank with one piece may pass blocks
    of it in ``own``, by their numbers, instead of storing them in the piece. It must be the first to add these up.
    """

    shares: LaneShares
    blocks: Sequence[slice]
    finish: Finish = field(default_factory=Finish)
    wire: DType | None = None
    own: Mapping[int, Array] = field(default_factory=dict)
    owners: Sequence[int] | None = None

    @property
    def is_scattered(self) -> bool:
        """Whether only the owner of a block gets its sum."""
        return self.owners is not None

    def owners_in(self, topology: Topology) -> Sequence[int]:
        """Return the rank that adds up each block."""
        return owners_of(len(self.blocks), topology) if self.owners is None else self.owners


def blocks_added(count: int, owners: Sequence[int] | None, rank: int, topology: Topology) -> list[int]:
    """Return the numbers of the blocks, of ``count``, that ``rank`` adds up."""
    found = owners_of(count, topology) if owners is None else owners
    return [number for number, owner in enumerate(found) if owner == rank]


def blocks_added_first(count: int, owners: Sequence[int] | None, rank: int, topology: Topology) -> list[int]:
    """Return the numbers of the blocks, of ``count``, that ``rank`` adds up for its host.

    These are the blocks that it owns, and those for whose owner it stands in on its host.
    """
    found = owners_of(count, topology) if owners is None else owners
    stands_for = stand_ins(topology)[topology.number_of_host(rank)]
    return [number for number, owner in enumerate(found) if stands_for[owner] == rank]


@lru_cache
def count_pieces(shares: LaneShares) -> tuple[int, ...]:
    """Return how many pieces each rank contributes."""
    return tuple(len(shares.pieces(rank)) for rank in range(len(shares.by_rank)))


class LaneReduction:
    """How the pieces of all hosts become a sum, in one call and on one rank.

    ``rows`` has the pieces of every rank of this host, one row for each piece. A host sends its pieces as they are, or
    rounded for the wire. A piece of narrow elements that is the sum of several ranks' pieces travels as f32.
    """

    def __init__(
        self, rank: int, topology: Topology, fold: LaneFold, dtype: DType, rows: Mapping[int, Array], target: Array
    ) -> None:
        self._rank, self._fold, self._dtype, self._rows, self._target = rank, fold, dtype, rows, target
        self._wire = fold.wire if len(topology.hosts) > 1 else None
        self._host = topology.number_of_host(rank)
        self._pieces = pieces_by_host(fold.shares, topology)
        self._inputs = _list_inputs(fold.shares, topology, None if self._wire else self._host)
        self._input_lanes = tuple(each.lanes for each in self._inputs)
        self._has_sums = dtype.is_narrow and any(
            len(piece.pieces) > 1 for host, each in enumerate(self._pieces) if host != self._host for piece in each
        )
        self._divisor = fold.finish.divisor
        self._contribution_bytes = [
            sum(dtype.itemsize for dtype in self._types(host)) for host in range(len(self._pieces))
        ]
        self.result_itemsize = (self._wire or dtype).itemsize

    def contribution_bytes(self, host: int) -> int:
        """Return how many bytes a host contributes for each element."""
        return self._contribution_bytes[host]

    def contribute(self, chunk: Chunk, scratch: Array) -> list[Array]:
        """Return this host's pieces of a chunk."""
        arrays: list[Array] = []
        made = 0
        for piece, dtype in zip(self._pieces[self._host], self._types(self._host), strict=True):
            if self._wire is None and len(piece.pieces) == 1:
                arrays += [self._read(piece.pieces[0], number, block) for number, block in self._split_by_place(chunk)]
                continue
            out = scratch[made : made + dtype.itemsize * chunk.length].view(dtype.numpy)
            made += out.nbytes
            self._make(piece, chunk, out)
            arrays.append(out)
        return arrays

    def add_up(self, chunk: Chunk, contributions: Mapping[int, Array]) -> Array:
        """Add up the pieces of all hosts, block by block, in the order of the lanes."""
        arrived = {host: self._split(host, chunk, each) for host, each in contributions.items()}
        if self._wire:
            scratch = np.empty(self.contribution_bytes(self._host) * chunk.length, np.uint8)
            arrived[self._host] = self.contribute(chunk, scratch)
        narrow = np.empty(chunk.length, np.uint16) if self._wire else None
        for number in chunk.numbers:
            block = self._fold.blocks[number]
            place = slice(block.start - chunk.span.start, block.stop - chunk.span.start)
            inputs = [
                self._read(each.piece, number, block) if each.piece else arrived[each.host][each.number][place]
                for each in self._inputs
            ]
            self._add_up_block(number, inputs, self._target[block] if narrow is None else narrow[place])
        if narrow is None:
            return self._target[chunk.span]
        widen_bf16(narrow, self._target[chunk.span])
        return narrow

    def place(self, chunk: Chunk) -> Array | None:
        """Return the place of a sum, unless it arrives rounded."""
        return None if self._wire else self._target[chunk.span]

    def store(self, chunk: Chunk, received: Array) -> None:
        """Widen a sum that was rounded; any other is in its place."""
        if self._wire:
            widen_bf16(received.view(np.uint16), self._target[chunk.span])

    def _add_up_block(self, number: int, inputs: Sequence[Array], out: Array) -> None:
        squares, divisor = self._fold.finish.squares, self._divisor
        if self._has_sums and self._wire is None:
            wide = np.empty(len(out), np.float32)
            inputs = [each if each.dtype == wide.dtype else widen(self._dtype, each) for each in inputs]
            square = fold_pieces(
                DType.F32, self._input_lanes, inputs, wide, divisor=divisor, is_measured=squares is not None
            )
            finish(ReduceOp.SUM, self._dtype, wide, 1, out)
        else:
            dtype = self._wire or self._dtype
            square = fold_pieces(
                dtype, self._input_lanes, inputs, out, divisor=divisor, is_measured=squares is not None
            )
        if squares is not None:
            squares[number] = square

    def _make(self, piece: HostPiece, chunk: Chunk, out: Array) -> None:
        """Write a piece of this host, the sum of its ranks' pieces, into ``out``."""
        wide = np.empty(chunk.length, np.float32) if self._wire else out
        first = piece.lanes.start
        lanes = [range(each.lanes.start - first, each.lanes.stop - first) for each in piece.pieces]
        for number, block in self._split_by_place(chunk):
            inputs = [widen(self._dtype, self._read(each, number, block)) for each in piece.pieces]
            place = slice(block.start - chunk.span.start, block.stop - chunk.span.start)
            fold_pieces(self._dtype.accumulator, lanes, inputs, wide[place])
        if self._wire:
            round_to_bf16(wide, out)

    def _split_by_place(self, chunk: Chunk) -> list[tuple[int, slice]]:
        """Return the whole chunk, or its blocks if some of them may lie in ``own``."""
        if not self._fold.own:
            return [(chunk.numbers[0], chunk.span)]
        return [(number, self._fold.blocks[number]) for number in chunk.numbers]

    def _read(self, piece: RankPiece, number: int, block: slice) -> Array:
        if piece.rank == self._rank and number in self._fold.own:
            return self._fold.own[number]
        found: Array = self._rows[piece.rank][piece.row, block]
        return found

    def _types(self, host: int) -> list[DType]:
        """Return the type that each piece of a host has on the wire."""
        if self._wire:
            return [self._wire] * len(self._pieces[host])
        return [self._dtype.accumulator if len(piece.pieces) > 1 else self._dtype for piece in self._pieces[host]]

    def _split(self, host: int, chunk: Chunk, contribution: Array) -> list[Array]:
        """Return the pieces that are in the bytes of a host's contribution to a chunk."""
        ends = itertools.accumulate((dtype.itemsize * chunk.length for dtype in self._types(host)), initial=0)
        return [
            contribution[start:stop].view(dtype.numpy)
            for (start, stop), dtype in zip(itertools.pairwise(ends), self._types(host), strict=True)
        ]


class _Input(NamedTuple):
    """A piece that is added to a sum: the ``piece`` of a rank of this host, or else piece ``number`` of a host."""

    lanes: range
    host: int
    number: int
    piece: RankPiece | None = None


@lru_cache
def _list_inputs(shares: LaneShares, topology: Topology, own_host: int | None) -> tuple[_Input, ...]:
    """Return the pieces of all hosts in lane order; those of ``own_host`` are the pieces of its ranks."""
    inputs: list[_Input] = []
    for host, pieces in enumerate(pieces_by_host(shares, topology)):
        for number, piece in enumerate(pieces):
            if host == own_host:
                inputs += [_Input(each.lanes, host, number, each) for each in piece.pieces]
            else:
                inputs.append(_Input(piece.lanes, host, number))
    return tuple(sorted(inputs, key=lambda each: each.lanes.start))
