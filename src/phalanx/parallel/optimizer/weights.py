"""Weights in memory that other ranks can read, of a host or of a GPU: the owner updates a block, and they copy it."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from phalanx.group import Group
from phalanx.parallel.device import Shared, share
from phalanx.parallel.reduction import Block, Ownership, align, as_tensor, dtype_of, is_staged, pin
from phalanx.transport import Pending

_BUCKET_BYTES = 8 << 20


class WeightBucket:
    """Blocks of weights that travel together, with their places in memory and their owners."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.places: list[slice] = []
        self.owners: list[int] = []
        self.elements = 0

    def add(self, block: Block, start: int, owner: int) -> None:
        """Add a block of a parameter that begins at ``start`` in memory."""
        self.blocks.append(block)
        self.places.append(slice(start + block.start, start + block.stop))
        self.owners.append(owner)
        self.elements += block.stop - block.start


class Weights:
    """Parameters of one type and device, contiguous ones, moved to memory of the group.

    They travel in buckets, in the order of the parameters, so that the first can be used while the last still travel.
    ``copies`` has the model's parameter for each of them that is only a contiguous copy of it. On a GPU that all ranks
    share, they lie in memory of the GPU that all can read, unless they shall go ``through_host``.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        ownership: Ownership,
        group: Group,
        copies: Mapping[torch.nn.Parameter, torch.nn.Parameter] | None = None,
        *,
        is_elastic: bool = False,
        through_host: bool = False,
    ) -> None:
        self._parameters = parameters
        self._copies = copies or {}
        self._group = group
        first = parameters[0]
        starts = list(accumulate((align(each.numel()) for each in parameters), initial=0))
        self._is_staged = is_staged(first.device)
        self._shared: Shared | None = None
        if self._is_staged:
            nbytes = starts[-1] * first.element_size()
            self.route, self._shared = share(
                group, first.device, nbytes, is_elastic=is_elastic, is_left_out=through_host
            )
        if self._shared:
            self._mirror = self._shared.own.view(first.dtype)
            self._seen = {rank: each.view(first.dtype) for rank, each in self._shared.peers.items()}
            self._is_updated = torch.cuda.Event(blocking=True)
        else:
            self._array = group.allocate(starts[-1], dtype_of(first))
            self._mirror = as_tensor(self._array, first.dtype)
            if self._is_staged:
                pin(self._array, first.device)
        if not self._is_staged or self._shared:
            for start, parameter in zip(starts, parameters, strict=False):
                place = self._mirror[start : start + parameter.numel()].view(parameter.shape)
                place.copy_(parameter.data)
                parameter.data = place
        self._buckets = _fill_buckets(starts, ownership, _BUCKET_BYTES // first.element_size())

    def begin(self) -> list["Arrival"]:
        """Begin to copy the blocks of other ranks. All ranks call this together, after they have updated their own."""
        if self._shared:
            self._is_updated.record(torch.cuda.current_stream(self._mirror.device))
            self._group.enqueue("the update of weights", self._is_updated.synchronize)
            meeting = self._group.barrier_nowait()  # every rank has said that its blocks are updated
            return [Arrival(self, bucket, meeting) for bucket in self._buckets]
        if self._is_staged:
            for bucket in self._buckets:
                self._copy(bucket, is_own=True)
            torch.cuda.current_stream(self._parameters[0].device).synchronize()
        return [
            Arrival(
                self,
                bucket,
                self._group.broadcast_blocks_nowait(self._array, blocks=bucket.places, owners=bucket.owners),
            )
            for bucket in self._buckets
        ]

    def end(self, bucket: WeightBucket) -> None:
        """Copy a bucket that has arrived to where the model has its parameters, if that is elsewhere."""
        if self._shared:
            for place, owner in zip(bucket.places, bucket.owners, strict=True):
                if owner != self._group.rank:
                    self._mirror[place].copy_(self._seen[owner][place])
        elif self._is_staged:
            self._copy(bucket, is_own=False)
        for parameter in _parameters_of(bucket, self._parameters):
            if parameter in self._copies:
                self._copies[parameter].data.copy_(parameter.data)

    def parameters_of(self, bucket: WeightBucket) -> list[torch.nn.Parameter]:
        """Return the model's parameters that have blocks in a bucket."""
        return [self._copies.get(each, each) for each in _parameters_of(bucket, self._parameters)]

    def _copy(self, bucket: WeightBucket, *, is_own: bool) -> None:
        """Copy this rank's own blocks from the device, or the blocks of other ranks to it."""
        for block, place, owner in zip(bucket.blocks, bucket.places, bucket.owners, strict=True):
            if (owner == self._group.rank) == is_own:
                device = self._parameters[block.parameter].data.view(-1)[block.start : block.stop]
                host = self._mirror[place]
                (host if is_own else device).copy_(device if is_own else host, non_blocking=True)


class Arrival:
    """A bucket of weights that is on its way to this rank."""

    def __init__(self, weights: Weights, bucket: WeightBucket, pending: Pending[Any]) -> None:
        self._weights, self._bucket, self._pending = weights, bucket, pending
        self._is_here = False

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that have blocks in the bucket."""
        return self._weights.parameters_of(self._bucket)

    def wait(self) -> None:
        """Return when the bucket has arrived."""
        if not self._is_here:
            self._pending.wait()  # its call has a deadline
            self._weights.end(self._bucket)
            self._is_here = True


def _parameters_of(bucket: WeightBucket, parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return [parameters[number] for number in {block.parameter for block in bucket.blocks}]


def _fill_buckets(starts: Sequence[int], ownership: Ownership, most: int) -> list[WeightBucket]:
    buckets = [WeightBucket()]
    pairs = zip(ownership.blocks, ownership.owners, strict=True)
    for block, owner in sorted(pairs, key=lambda pair: (pair[0].parameter, pair[0].start)):
        if buckets[-1].elements >= most:
            buckets.append(WeightBucket())
        buckets[-1].add(block, starts[block.parameter], owner)
    return buckets
