"""Moving tensors between members at the start of an epoch: in chunks, and between all of them at the same time."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from phalanx.buffers import Array, slices
from phalanx.elastic import cut_copy
from phalanx.group import Group
from phalanx.transport import Pending

_CHUNK_BYTES = 512 << 10  # less than a socket holds: while a chunk of one member arrives, those of others do too
_AHEAD = 4  # rounds of chunks on their way, so that a link does not wait while Python works


class TensorBytes:
    """The bytes of some tensors, one behind another."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._rows = [each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for each in tensors]
        self._ends = list(accumulate(map(len, self._rows)))

    @property
    def span(self) -> slice:
        """All bytes."""
        return slice(0, self._ends[-1] if self._ends else 0)

    def read(self, chunk: slice) -> Array:
        """Return a copy of some bytes."""
        return np.concatenate(list(self._cut(chunk)))

    def view(self, chunk: slice) -> Array | None:
        """Return some bytes in place, or None if they are not all of one tensor."""
        views = list(self._cut(chunk))
        return views[0] if len(views) == 1 else None

    def write(self, chunk: slice, data: Array) -> None:
        """Replace some bytes."""
        start = 0
        for view in self._cut(chunk):
            view[:] = data[start : start + len(view)]
            start += len(view)

    def store(self) -> None:
        """Copy what was written to the tensors, if it is not there."""
        for tensor, row in zip(self._tensors, self._rows, strict=True):
            if not len(row) or row.ctypes.data == tensor.data_ptr():
                continue  # torch cannot view no bytes as another type; or the bytes are those of the tensor
            tensor.data.copy_(torch.from_numpy(row).view(tensor.dtype).view(tensor.shape))

    def _cut(self, chunk: slice) -> Iterator[Array]:
        """Yield the views that make up some bytes."""
        for number in range(bisect_right(self._ends, chunk.start), len(self._rows)):
            start = self._ends[number] - len(self._rows[number])
            if start >= chunk.stop:
                return
            yield self._rows[number][max(chunk.start - start, 0) : chunk.stop - start]


def copy_to_newcomers(
    group: Group, holders: Sequence[int], newcomers: Sequence[int], tensors: Sequence[torch.Tensor]
) -> None:
    """Copy tensors from the holders to the newcomers. Each holder sends an even part, and all send at the same time."""
    content = TensorBytes(tensors)
    parts = {rank: _Part(content, span) for rank, span in cut_copy(content.span.stop, holders).items()}
    if group.rank in holders:
        _carry(group, dict.fromkeys(newcomers, parts[group.rank]), {})
    elif group.rank in newcomers:
        _carry(group, {}, parts)
        content.store()


def hand_over(
    group: Group, outgoing: Mapping[int, Sequence[torch.Tensor]], incoming: Mapping[int, Sequence[torch.Tensor]]
) -> None:
    """Send tensors to some members and receive others, by rank, all at the same time."""
    sent, got = ({rank: TensorBytes(each) for rank, each in way.items()} for way in (outgoing, incoming))
    _carry(
        group,
        {rank: _Part(content, content.span) for rank, content in sent.items()},
        {rank: _Part(content, content.span) for rank, content in got.items()},
    )
    for content in got.values():
        content.store()


class _Part(NamedTuple):
    """Some of the bytes of tensors, which travel to or from one member."""

    content: TensorBytes
    span: slice


def _carry(group: Group, outgoing: Mapping[int, _Part], incoming: Mapping[int, _Part]) -> None:
    """Send and receive round by round: in each, a chunk goes to and comes from every member.

    Nobody waits for a round before it has begun the next ones, so members that send to each other do not block.
    """
    leaving = {rank: list(slices(part.span, _CHUNK_BYTES)) for rank, part in outgoing.items()}
    arriving = {rank: list(slices(part.span, _CHUNK_BYTES)) for rank, part in incoming.items()}
    under_way: list[list[_Moving]] = []
    for number in range(max(map(len, [*leaving.values(), *arriving.values()]), default=0)):
        sent = [_send(group, rank, outgoing[rank], its[number]) for rank, its in leaving.items() if number < len(its)]
        got = [
            _receive(group, rank, incoming[rank], its[number]) for rank, its in arriving.items() if number < len(its)
        ]
        under_way.append([*sent, *got])
        if len(under_way) > _AHEAD:
            _finish(under_way.pop(0))
    for moving in under_way:
        _finish(moving)


class _Moving(NamedTuple):
    """A chunk on its way; ``data`` is where it arrives, None if it leaves or arrives in place."""

    pending: Pending[None] | Pending[Array]
    content: TensorBytes
    chunk: slice
    data: Array | None


def _send(group: Group, rank: int, part: _Part, chunk: slice) -> _Moving:
    data = part.content.view(chunk)
    pending = group.send_nowait(part.content.read(chunk) if data is None else data, rank)
    return _Moving(pending, part.content, chunk, None)


def _receive(group: Group, rank: int, part: _Part, chunk: slice) -> _Moving:
    data = part.content.view(chunk)
    if data is not None:
        return _Moving(group.recv_nowait(data, rank), part.content, chunk, None)
    data = np.empty(chunk.stop - chunk.start, np.uint8)
    return _Moving(group.recv_nowait(data, rank), part.content, chunk, data)


def _finish(moving: Sequence[_Moving]) -> None:
    for each in moving:
        each.pending.wait()  # its call has a deadline
        if each.data is not None:
            each.content.write(each.chunk, each.data)
