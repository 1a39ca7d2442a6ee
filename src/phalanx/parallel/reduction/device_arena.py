"""The device arena: buckets whose pieces all ranks of one GPU read where they are, and add up there."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from phalanx.buffers import LaneShares
from phalanx.group import Group
from phalanx.parallel.device import Shared
from phalanx.parallel.reduction.device_fold import add_up, divide
from phalanx.parallel.reduction.layout import Bucket, align
from phalanx.parallel.reduction.memory import TENSOR_TYPES, pin
from phalanx.parallel.reduction.spans import join_chunks, list_pieces, place_pieces, rows_of


class ArenaMemory:
    """The memory of one bucket in the device arena. Nothing is staged: the host has no part of it.

    ``inputs`` has the pieces of all ranks in the order of their lanes. The sum of the ``spans`` is written to the mean.
    """

    host_pieces = host_mean = np.empty(0, np.float32)

    def __init__(
        self,
        length: int,
        pieces: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        lanes: tuple[range, ...],
        spans: Sequence[slice],
        stream: "torch.cuda.Stream",
    ) -> None:
        self.pieces = pieces
        is_alone = len(inputs) == 1
        self.padded_mean = inputs[0] if is_alone else torch.zeros_like(pieces[0])
        self.mean = self.padded_mean[:length]
        self.stream = stream
        self._inputs, self._lanes, self._spans = inputs, lanes, spans
        self._is_out, self._is_in = torch.cuda.Event(blocking=True), torch.cuda.Event(blocking=True)

    def start_copy_out(self) -> None:
        """Note that all work on the pieces is queued."""
        self._is_out.record(torch.cuda.current_stream(self.pieces.device))

    def wait_for_copy_out(self) -> None:
        """Wait until the GPU has done that work. Only then does a rank tell the others that its pieces are there."""
        self._is_out.synchronize()

    def publish(self) -> None:
        """Let other ranks see what was done with the pieces on the present stream. Return when they can."""
        torch.cuda.current_stream(self.pieces.device).synchronize()

    def make_mean(self, divisor: float | None) -> None:
        """Begin to add up the pieces of all ranks, on the present stream. All of them have said that theirs are there.

        No event of another rank is waited for, so nothing that a rank leaves undone when it dies can stop this GPU.
        """
        for span in self._spans:
            out = self.mean[span]
            total = add_up(self._lanes, [self._see(each, span) for each in self._inputs], out)
            divide(total, divisor)
            if total is not out:
                out.copy_(total)

    def start_copy_in(self) -> None:
        """Note that all work on the mean is queued."""
        self._is_in.record(torch.cuda.current_stream(self.mean.device))

    def wait_for_copy_in(self) -> None:
        """Make the current stream wait for that work."""
        torch.cuda.current_stream(self.mean.device).wait_event(self._is_in)

    def wait_for_mean(self) -> None:
        """Wait until that work is done."""
        self._is_in.synchronize()

    def _see(self, piece: torch.Tensor, span: slice) -> torch.Tensor:
        return piece[span]


class StagedMemory(ArenaMemory):
    """The memory of a bucket whose pieces all ranks of the host see in pinned memory of the host.

    ``staged`` is where this rank's pieces go. Pieces of other ranks, among the ``inputs``, are copied in before they
    are added up. Copies out and copies in have a stream each, so that they pass each other on the bus.
    """

    def __init__(
        self,
        length: int,
        pieces: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        lanes: tuple[range, ...],
        spans: Sequence[slice],
        stream: "torch.cuda.Stream",
        staged: torch.Tensor,
        outwards: "torch.cuda.Stream",
    ) -> None:
        super().__init__(length, pieces, inputs, lanes, spans, stream)
        self._staged, self._outwards = staged, outwards

    def start_copy_out(self) -> None:
        """Start to copy the pieces to the host, after all work that was queued on the device so far."""
        self._outwards.wait_stream(torch.cuda.current_stream(self.pieces.device))
        with torch.cuda.stream(self._outwards):
            self._staged.copy_(self.pieces[: len(self._staged)], non_blocking=True)
            self._is_out.record()

    def publish(self) -> None:
        """Copy the pieces to the host once more. Return when they are there."""
        self._staged.copy_(self.pieces[: len(self._staged)], non_blocking=True)
        super().publish()

    def _see(self, piece: torch.Tensor, span: slice) -> torch.Tensor:
        return piece[span].to(self.pieces.device, non_blocking=True)


def make_arena(
    buckets: Sequence[Bucket],
    shares: LaneShares,
    rank: int,
    shared: Shared | None,
    added: Sequence[frozenset[int]],
    device: torch.device,
) -> list[ArenaMemory]:
    """Return the memory of all buckets. Without ``shared`` memory this rank is alone, and its mean is its only piece.

    A sharded bucket is added up by the owners of its chunks, which are ``added`` here; any other one by every rank,
    since on one GPU that moves no more bytes than if ranks read parts of the mean from each other.
    """
    stream = torch.cuda.Stream(device)
    rows = [rows_of(shares, each) for each in range(len(shares.by_rank))]
    offsets = [place_pieces(buckets, each)[0] for each in rows]
    order = list_pieces(shares)
    lanes = tuple(each.lanes for each in order)
    found = []
    for number, bucket in enumerate(buckets):
        if shared is None:
            pieces = [_make_rows(bucket, rows[0], device)]
        else:
            pieces = [
                _view_rows(shared.of(each), offsets[each][number], bucket, count) for each, count in enumerate(rows)
            ]
        inputs = [pieces[each.rank][each.row] for each in order]
        found.append(ArenaMemory(bucket.length, pieces[rank], inputs, lanes, _spans(bucket, added[number]), stream))
    return found


def make_staged_arena(
    buckets: Sequence[Bucket],
    shares: LaneShares,
    group: Group,
    added: Sequence[frozenset[int]],
    device: torch.device,
) -> list[ArenaMemory]:
    """Return the memory of all buckets, whose pieces ranks copy through one allocation of the host that all share."""
    stream, outwards = torch.cuda.Stream(device), torch.cuda.Stream(device)
    counts = [len(shares.pieces(each)) for each in range(group.size)]
    placed = [place_pieces(buckets, count) for count in counts]
    starts = [0, *accumulate(end for _, end in placed)]
    whole = group.allocate(starts[-1], np.uint8, shared=True)
    pin(whole, device)
    host = torch.from_numpy(whole)
    order = list_pieces(shares)
    lanes = tuple(each.lanes for each in order)
    found: list[ArenaMemory] = []
    for number, bucket in enumerate(buckets):
        staged = [
            _view_rows(host, start + offsets[number], bucket, count)
            for start, (offsets, _), count in zip(starts, placed, counts, strict=False)
        ]
        pieces = _make_rows(bucket, rows_of(shares, group.rank), device)
        inputs = [(pieces if each.rank == group.rank else staged[each.rank])[each.row] for each in order]
        spans, own = _spans(bucket, added[number]), staged[group.rank]
        found.append(StagedMemory(bucket.length, pieces, inputs, lanes, spans, stream, own, outwards))
    return found


def arena_bytes(buckets: Sequence[Bucket], shares: LaneShares, rank: int) -> int:
    """Return how much memory a rank exports for its pieces."""
    return place_pieces(buckets, rows_of(shares, rank))[1]


def _spans(bucket: Bucket, added: frozenset[int]) -> list[slice]:
    """Return the elements of a bucket that this rank adds up."""
    return join_chunks(bucket, added) if bucket.is_sharded else [slice(0, bucket.length)]


def _make_rows(bucket: Bucket, rows: int, device: torch.device) -> torch.Tensor:
    return torch.zeros((rows, align(bucket.length)), dtype=TENSOR_TYPES[bucket.dtype], device=device)


def _view_rows(octets: torch.Tensor, start: int, bucket: Bucket, rows: int) -> torch.Tensor:
    """Return the rows of a bucket that begin at a place in some memory."""
    width, kind = align(bucket.length), TENSOR_TYPES[bucket.dtype]
    return octets[start : start + rows * width * kind.itemsize].view(kind).view(rows, width)
