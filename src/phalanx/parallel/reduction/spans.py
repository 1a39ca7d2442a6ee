"""Which elements of a bucket a GPU adds up and measures at a time, and where the pieces of a rank lie in its memory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from phalanx.buffers import CHUNK, LaneShares, plan_lanes
from phalanx.parallel.reduction.lanes import count_rows, plan_deposits
from phalanx.parallel.reduction.layout import Bucket, align

ROW = align(1)
"""The elements whose squares a GPU adds up at first. A chunk begins with a row, and zeros fill its last one."""

_ALIGNED_BYTES = 512


class PiecePlace(NamedTuple):
    """Where the piece with these lanes is: in which row of the memory of which rank."""

    lanes: range
    rank: int
    row: int


class MeasuredRun(NamedTuple):
    """Chunks that are measured together: whole ones, or shorter ones, whose last rows are filled up with zeros."""

    elements: slice
    are_whole: bool


class Measured(NamedTuple):
    """The chunks of a bucket that a rank measures, in runs.

    There is a norm for every ``ROW`` elements. ``starts`` has the place of the first norm of each of the ``chunks``.
    """

    runs: tuple[MeasuredRun, ...]
    starts: tuple[int, ...]
    chunks: tuple[int, ...]
    norms: int


def rows_of(shares: LaneShares, rank: int) -> int:
    """Return how many rows a rank has for the sums of its lanes."""
    return count_rows(plan_deposits(plan_lanes(shares.by_rank[rank], ()), shares.count))


def list_pieces(shares: LaneShares) -> tuple[PiecePlace, ...]:
    """Return the pieces of all ranks in the order of their lanes."""
    found = [
        PiecePlace(lanes, rank, row)
        for rank in range(len(shares.by_rank))
        for row, lanes in enumerate(shares.pieces(rank))
    ]
    return tuple(sorted(found, key=lambda each: each.lanes.start))


def place_pieces(buckets: Sequence[Bucket], rows: int) -> tuple[list[int], int]:
    """Return where the pieces of each bucket begin in the memory of a rank, in bytes, and the length of all."""
    offsets, end = [], 0
    for bucket in buckets:
        offsets.append(end)
        nbytes = rows * align(bucket.length) * bucket.dtype.itemsize
        end += -(-nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
    return offsets, end


def join_chunks(bucket: Bucket, chosen: Collection[int]) -> list[slice]:
    """Return the elements of the chosen chunks; those of neighbours, and the gaps between these, in one slice."""
    spans: list[slice] = []
    last = None
    for number in sorted(chosen):
        chunk = bucket.chunks[number]
        start = spans.pop().start if number - 1 == last else chunk.start
        spans.append(slice(start, chunk.stop))
        last = number
    return spans


def plan_measuring(bucket: Bucket, chosen: Collection[int]) -> Measured:
    """Return how to measure the chosen chunks of a bucket."""
    runs: list[MeasuredRun] = []
    starts, norms, last = [], 0, None
    for number in sorted(chosen):
        chunk = bucket.chunks[number]
        is_whole = chunk.stop - chunk.start == CHUNK
        begin = chunk.start
        if last == number - 1 and runs[-1].are_whole == is_whole and runs[-1].elements.stop == chunk.start:
            begin = runs.pop().elements.start
        runs.append(MeasuredRun(slice(begin, align(chunk.stop)), is_whole))
        starts.append(norms)
        norms += (align(chunk.stop) - chunk.start) // ROW
        last = number
    return Measured(tuple(runs), tuple(starts), tuple(sorted(chosen)), norms)
