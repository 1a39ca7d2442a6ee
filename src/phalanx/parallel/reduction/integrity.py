"""Paranoid checks of an exchange: that gradients did not change in memory, and that sums are right.

Each rank compares fingerprints of its pieces before and after they were added up. The rank that adds up a chunk tells
the fingerprint of the sum, and every rank compares it with the sum that it is about to use. In each step one bucket is
added up twice, every chunk by two ranks, and their fingerprints are compared. The buckets take turns.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch

from phalanx.buffers import Array, LaneShares
from phalanx.collectives import Finish
from phalanx.errors import GradientCorrupted
from phalanx.group import Group
from phalanx.parallel.reduction.fingerprint import fingerprints
from phalanx.parallel.reduction.layout import Layout
from phalanx.parallel.reduction.memory import BucketMemory
from phalanx.transport import Pending


class Fault(IntEnum):
    """What a rank has found."""

    NONE = 0
    PIECE = 1
    """A piece of this rank changed while it was added up."""
    SUM = 2
    """A sum is not what the rank that added it up had."""
    ADDITION = 3
    """Two ranks added up the same pieces with different results."""


class Integrity:
    """The checks of one reducer. ``prints`` are two sections of the summary, with a value for each chunk.

    ``added_here`` has the chunks of each bucket that this rank adds up. All ranks make this together.
    """

    def __init__(
        self,
        layout: Layout,
        memory: Sequence[BucketMemory],
        group: Group,
        added_here: Sequence[frozenset[int]],
        prints: Array,
    ) -> None:
        self._layout, self._memory, self._group, self._prints = layout, memory, group, prints
        owners = np.zeros(layout.chunks)
        for bucket, added in zip(layout.buckets, added_here, strict=True):
            owners[[bucket.first_chunk + index for index in added]] = group.rank
        group.all_reduce(owners)
        self._owners = owners.astype(int)
        self._witnesses = (self._owners + 1) % group.size
        self._again = np.zeros(max(bucket.length * bucket.dtype.itemsize for bucket in layout.buckets), np.uint8)
        self._exchanges = 0
        self._seals: list[int] = []
        self._changed: int | None = None

    def begin(self) -> None:
        """Start the next exchange."""
        self._exchanges += 1
        self._changed = None

    def seal(self, number: int, pieces: torch.Tensor) -> None:
        """Remember the fingerprints of a bucket's pieces, which are about to be added up."""
        self._seals = self._fingerprint_pieces(number, pieces)

    def add_up_again(self, number: int, pieces: Array, lanes: LaneShares, finish: Finish) -> Pending[Array] | None:
        """Begin to add up a bucket again if it is its turn, each chunk by another rank."""
        if not self._is_twice(number):
            return None
        bucket = self._layout.buckets[number]
        return self._group.scatter_lanes_nowait(
            pieces,
            self._sums_again(number),
            lanes=lanes,
            blocks=bucket.chunks,
            owners=self._witnesses[bucket.first_chunk :][: len(bucket.chunks)].tolist(),
            finish=Finish(counts=finish.counts),
        )

    def tell(self, number: int, pieces: torch.Tensor) -> None:
        """Put the fingerprints of this rank's sums into the summary, and look whether its pieces have changed."""
        self._tell(0, number, self._owners, self._memory[number].host_mean)
        if self._is_twice(number):
            self._tell(1, number, self._witnesses, self._sums_again(number))
        pairs = zip(self._seals, self._fingerprint_pieces(number, pieces), strict=True)
        changed = [index for index, (before, after) in enumerate(pairs) if before != after]
        if changed:
            parameters = self._layout.buckets[number].parameters
            self._changed = parameters[changed[0] % len(parameters)]

    def check(self, step: int) -> GradientCorrupted | None:
        """Return what some rank has found, the same error on all ranks. All ranks call this after the summary."""
        table = np.zeros((self._group.size, 2))
        table[self._group.rank] = self._find()
        self._group.all_reduce(table.reshape(-1))
        for rank, (fault, parameter) in enumerate(table.astype(int).tolist()):
            if fault:
                return self._corrupted(step, rank, Fault(fault), parameter)
        return None

    def _find(self) -> tuple[Fault, int]:
        """Return what is wrong and in which parameter, as this rank sees it."""
        twice = self._layout.buckets[self._exchanges % len(self._layout.buckets)]
        for chunk, (parameter, _) in enumerate(twice.origins, twice.first_chunk):
            if self._prints[0, chunk] != self._prints[1, chunk]:
                return Fault.ADDITION, parameter
        if self._changed is not None:
            return Fault.PIECE, self._changed
        for bucket, memory in zip(self._layout.buckets, self._memory, strict=True):
            numbers = range(bucket.first_chunk, bucket.first_chunk + len(bucket.chunks))
            seen = [number for number in numbers if not bucket.is_sharded or self._owners[number] == self._group.rank]
            found = self._fingerprint(memory.host_mean, [bucket.chunks[number - numbers.start] for number in seen])
            for number, fingerprint in zip(seen, found, strict=True):
                if self._prints[0, number] != fingerprint:
                    return Fault.SUM, bucket.origins[number - numbers.start][0]
        return Fault.NONE, 0

    def _corrupted(self, step: int, rank: int, fault: Fault, parameter: int) -> GradientCorrupted:
        name = self._layout.parameters[parameter].name
        what = {
            Fault.PIECE: f"the gradient of {name} changed in the memory of rank {rank}",
            Fault.SUM: f"the mean gradient of {name} changed in the memory that rank {rank} reads",
            Fault.ADDITION: f"two ranks added up the gradients of {name} with different results",
        }[fault]
        found = None if fault is Fault.ADDITION else rank
        suspects = "all machines" if found is None else f"the machine of rank {rank}"
        return GradientCorrupted(
            f"{what} at step {step}: look at {suspects}; weights are those before this step",
            step=step,
            rank=found,
            parameter=name,
        )

    def _is_twice(self, number: int) -> bool:
        return number == self._exchanges % len(self._layout.buckets)

    def _sums_again(self, number: int) -> Array:
        bucket = self._layout.buckets[number]
        return self._again[: bucket.length * bucket.dtype.itemsize].view(bucket.dtype.numpy)

    def _tell(self, section: int, number: int, adders: Array, sums: Array) -> None:
        bucket = self._layout.buckets[number]
        own = [index for index in range(len(bucket.chunks)) if adders[bucket.first_chunk + index] == self._group.rank]
        found = self._fingerprint(sums, [bucket.chunks[index] for index in own])
        self._prints[section, [bucket.first_chunk + index for index in own]] = found

    def _fingerprint_pieces(self, number: int, pieces: torch.Tensor) -> list[int]:
        """Return a fingerprint for every parameter of every piece."""
        return fingerprints([piece[place] for piece in pieces for place in self._layout.buckets[number].places])

    def _fingerprint(self, sums: Array, chunks: Sequence[slice]) -> list[int]:
        return fingerprints([torch.from_numpy(sums[chunk].view(np.uint8)) for chunk in chunks])
