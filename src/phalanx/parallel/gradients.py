"""Gradients on their way: each has its place, which other ranks can see, and finds the mean of all ranks' there.

If its parameter is sharded, only the pieces that this rank owns become the mean: others need not know them.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from phalanx.buffers import DType
from phalanx.collectives import Finish
from phalanx.group import Group
from phalanx.parallel.flat import Bucket, Entry, align, lay_out
from phalanx.parallel.shards import Ownership
from phalanx.parallel.slots import NARROW, Slot, as_tensor, dtype_of, make_slot, make_stream, pin

Named = Sequence[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A bucket with its memory: the gradients of the parameters with these ``numbers``, each in its place.

    ``owners`` has the rank that gets each of the ``cuts``; without it, all get all of them. ``origins`` has the number
    of the parameter that each is of.
    """

    numbers: tuple[int, ...]
    dtype: torch.dtype
    cuts: tuple[slice, ...]
    origins: tuple[int, ...]
    slot: Slot
    places: tuple[torch.Tensor, ...]
    owners: tuple[int, ...] | None

    def exchange(self, group: Group, scale: float, wire: DType | None) -> set[int]:
        """Add up all ranks' gradients, where this rank's count ``scale`` times.

        Returns the numbers of parameters of which this rank owns something that is not finite.
        """
        self.slot.wait_until_shown()
        shown = as_tensor(self.slot.shown, self.dtype)
        if scale == 0:
            shown.zero_()  # times 0 is not enough for what is not finite
        elif scale != 1:
            shown.mul_(scale)

        rows, out, size, cuts = self.slot.shown, self.slot.folded, group.size, self.cuts
        narrow = wire if self.dtype is torch.float32 else None
        counts = np.array([size], np.float64)
        if self.owners is not None:
            finish = Finish(counts, np.zeros(len(cuts)))
            group.scatter_lanes(rows, out, lanes=size, blocks=cuts, owners=self.owners, finish=finish, wire=narrow)
        else:
            # A narrow sum may be too large for its type, and is divided before it is rounded; others later, in passing.
            finish = Finish(counts if self._is_narrow else None)
            group.fold_lanes(rows, out, lanes=size, blocks=cuts, finish=finish, wire=narrow)
        self.slot.take_back()
        squares = finish.squares
        return set() if squares is None else {self.origins[number] for number in np.flatnonzero(~np.isfinite(squares))}

    def settle(self, size: int) -> None:
        """Put the mean of ``size`` ranks where the gradients are: memory of this rank alone, to be scaled at will."""
        self.slot.wait_until_back()
        if self.owners is None:
            torch.div(self.slot.result, 1 if self._is_narrow else size, out=self.slot.rows[0])
        elif self.slot.result.data_ptr() != self.slot.rows.data_ptr():
            self.slot.rows[0].copy_(self.slot.result)

    def spoil(self, numbers: Container[int], rank: int) -> None:
        """Put a NaN where others own something of these parameters: GradScaler looks for one on every rank."""
        if self.owners is not None:
            for cut, number, owner in zip(self.cuts, self.origins, self.owners, strict=True):
                if owner != rank and number in numbers:
                    self.slot.rows[0, cut.start] = torch.nan

    @property
    def _is_narrow(self) -> bool:
        return self.dtype in NARROW


def make_parcels(named: Named, group: Group, bucket_bytes: int, ownership: Ownership) -> tuple[Parcel, ...]:
    """Parcels for all the parameters, in the order in which they leave; all ranks call this together.

    Parameters of one type, if they are sharded alike, share buckets, all of which lie in one piece of memory. Those of
    which the ``ownership`` knows nothing are not sharded.
    """
    alike: dict[tuple[torch.dtype, bool], list[int]] = {}
    for number, (_, parameter) in enumerate(named):
        alike.setdefault((parameter.dtype, ownership.has(number)), []).append(number)
    parcels = [
        parcel
        for (_, is_sharded), numbers in alike.items()
        for parcel in _make_alike(named, numbers, group, bucket_bytes, ownership if is_sharded else None)
    ]
    # Backward comes to the first parameter of a bucket last: the later it is in the model, the sooner the bucket goes.
    return tuple(sorted(parcels, key=lambda parcel: min(parcel.numbers), reverse=True))


def _make_alike(
    named: Named, numbers: Sequence[int], group: Group, bucket_bytes: int, ownership: Ownership | None
) -> list[Parcel]:
    first = named[numbers[0]][1]
    kind, stream = dtype_of(first), make_stream(first.device)
    entries = [Entry(named[number][0], named[number][1].numel()) for number in numbers]
    buckets = lay_out(entries, -(-bucket_bytes // kind.itemsize)).buckets
    starts = np.cumsum([0, *(align(bucket.length) for bucket in buckets)]).tolist()
    shown = group.allocate((1, starts[-1]), kind)
    folded = shown[0] if ownership else group.allocate(starts[-1], kind, shared=len(group.hosts) == 1)
    if stream is not None:
        pin(shown)
        pin(folded)

    def make(bucket: Bucket, start: int) -> Parcel:
        span = slice(start, start + bucket.length)
        slot = make_slot(shown[:, span], folded[span], first.dtype, stream)
        owned = tuple(numbers[entry] for entry in bucket.entries)
        places = tuple(
            slot.rows[0, at].view(named[number][1].shape) for number, at in zip(owned, bucket.places, strict=True)
        )
        found = [bucket.origins[cut.start] for cut in bucket.cuts]
        origins = tuple(numbers[entry] for entry, _ in found)
        owners = tuple(ownership.owner_at(numbers[entry], start) for entry, start in found) if ownership else None
        return Parcel(owned, first.dtype, bucket.cuts, origins, slot, places, owners)

    return [make(bucket, start) for bucket, start in zip(buckets, starts, strict=False)]
