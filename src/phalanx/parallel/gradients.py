"""Gradients on their way: each has its place, which other ranks can see, and finds the mean of all ranks' there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from phalanx.buffers import Array, DType
from phalanx.group import Group
from phalanx.parallel.flat import Bucket, Entry, lay_out
from phalanx.parallel.slots import Slot, as_tensor, dtype_of, make_slot, make_stream, pin

Named = Sequence[tuple[str, torch.Tensor]]

_ALIGNED = 64  # elements: a bucket begins at the start of a cache line, as parameters do


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A bucket with its memory: the gradients of the parameters with these ``numbers``, each in its place."""

    numbers: tuple[int, ...]
    dtype: torch.dtype
    cuts: tuple[slice, ...]
    slot: Slot
    places: tuple[torch.Tensor, ...]

    def exchange(self, group: Group, scale: float, wire: DType | None) -> None:
        """Add up all ranks' gradients, where this rank's count ``scale`` times."""
        self.slot.wait_until_shown()
        shown = as_tensor(self.slot.shown, self.dtype)
        if scale == 0:
            shown.zero_()  # times 0 is not enough for what is not finite
        elif scale != 1:
            shown.mul_(scale)

        def divide(_: int, values: Array) -> None:
            np.multiply(values, values.dtype.type(1 / group.size), values)

        # A narrow sum may be too large for its type, so it is divided before it is rounded; others later, in passing.
        group.fold_lanes(
            self.slot.shown,
            self.slot.folded,
            lanes=group.size,
            blocks=self.cuts,
            finish=divide if self._is_narrow else None,
            wire=wire if self.dtype is torch.float32 else None,
        )
        self.slot.take_back()

    def settle(self, size: int) -> None:
        """Put the mean of ``size`` ranks where the gradients are: memory of this rank alone, to be scaled at will."""
        self.slot.wait_until_back()
        torch.mul(self.slot.result, 1 if self._is_narrow else 1 / size, out=self.slot.rows[0])

    @property
    def _is_narrow(self) -> bool:
        return self.dtype in (torch.bfloat16, torch.float16)


def make_parcels(named: Named, group: Group, bucket_bytes: int) -> tuple[Parcel, ...]:
    """Parcels for all the parameters, in the order in which they leave; all ranks call this together.

    Parameters of one type share their buckets, and all the buckets of a type lie in one piece of memory.
    """
    by_type: dict[torch.dtype, list[int]] = {}
    for number, (_, parameter) in enumerate(named):
        by_type.setdefault(parameter.dtype, []).append(number)
    parcels = [parcel for numbers in by_type.values() for parcel in _make_alike(named, numbers, group, bucket_bytes)]
    # Backward comes to the first parameter of a bucket last: the later it is in the model, the sooner the bucket goes.
    return tuple(sorted(parcels, key=lambda parcel: min(parcel.numbers), reverse=True))


def _make_alike(named: Named, numbers: Sequence[int], group: Group, bucket_bytes: int) -> list[Parcel]:
    first = named[numbers[0]][1]
    kind, stream = dtype_of(first), make_stream(first.device)
    entries = [Entry(named[number][0], named[number][1].numel()) for number in numbers]
    buckets = lay_out(entries, -(-bucket_bytes // kind.itemsize)).buckets
    starts = np.cumsum([0, *(-(-bucket.length // _ALIGNED) * _ALIGNED for bucket in buckets)]).tolist()
    shown = group.allocate((1, starts[-1]), kind)
    folded = group.allocate(starts[-1], kind, shared=len(group.hosts) == 1)
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
        return Parcel(owned, first.dtype, bucket.cuts, slot, places)

    return [make(bucket, start) for bucket, start in zip(buckets, starts, strict=False)]
