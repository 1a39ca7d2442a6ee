"""Gradients on their way: a parcel takes those of some parameters along, and brings the means of all ranks'."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array, DType, even_part
from phalanx.collectives import Finish
from phalanx.group import Group
from phalanx.parallel.flat import Bucket, Entry, lay_out
from phalanx.parallel.held import Held
from phalanx.parallel.slots import Slot, as_tensor, dtype_of, make_slot, make_stream, pin

Named = Sequence[tuple[str, torch.Tensor]]
Places = Mapping[int, torch.Tensor]

_ALIGNED = 64  # elements: a bucket begins at the start of a cache line, as parameters do


class Parcel(Protocol):
    """The gradients of the parameters with these ``numbers``, which are exchanged together."""

    numbers: tuple[int, ...]

    def put(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Take a gradient along; None counts as zeros. Returns where its mean will be."""

    def show(self) -> None:
        """Begin to bring them to where others see them: all have come."""

    def exchange(self, group: Group, scale: float, wire: DType | None) -> None:
        """Make the mean of all ranks' gradients, where this rank's count ``scale`` times."""

    def settle(self) -> None:
        """See that the means are where the gradients were."""


class PlacedParcel:
    """A bucket with memory of its own for all its gradients, on a host or on a GPU."""

    def __init__(
        self, numbers: tuple[int, ...], dtype: torch.dtype, cuts: tuple[slice, ...], slot: Slot, places: Places
    ) -> None:
        self.numbers = numbers
        self._dtype = dtype
        self._cuts = cuts
        self._slot = slot
        self._places = places

    def put(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Copy it to its place, so that what it was in is free for the next gradient, while it is in cache."""
        place = self._places[number]
        if gradient is None:
            place.zero_()
        elif gradient.data_ptr() != place.data_ptr():
            place.copy_(gradient.detach())
        return place.data  # to autograd this is no view, which it could not detach

    def show(self) -> None:
        """As its slot does."""
        self._slot.show()

    def exchange(self, group: Group, scale: float, wire: DType | None) -> None:
        """Fold what all ranks show into a sum that all see."""
        self._slot.wait_until_shown()
        shown = as_tensor(self._slot.shown, self._dtype)
        if scale != 1:
            shown.copy_(_scaled(shown, scale))
        group.fold_lanes(
            self._slot.shown,
            self._slot.folded,
            lanes=group.size,
            blocks=self._cuts,
            finish=_divide_by(group.size),
            wire=wire if self._dtype is torch.float32 else None,
        )
        self._slot.take_back()

    def settle(self) -> None:
        """Put the mean where the gradients are: memory of this rank alone, which people may scale as they like."""
        self._slot.wait_until_back()
        self._slot.rows[0].copy_(self._slot.result)


class DirectParcel:
    """A bucket of ranks that share memory: gradients are read where autograd has put them.

    Only what other ranks add up is copied, through a ``stage``, and only the ``sum`` of one bucket is there at a time:
    both stay in cache. Means go to places of their own: autograd may still use the memory of a gradient.
    """

    def __init__(self, numbers: tuple[int, ...], bucket: Bucket, places: Places, stage: Array, folded: Array) -> None:
        self.numbers = numbers
        self._bucket = bucket
        self._places = places
        self._stage = stage
        self._folded = folded
        self._held: dict[int, torch.Tensor] = {}

    def put(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Hold it."""
        place = self._places[number]
        self._held[number] = place.zero_() if gradient is None else gradient.detach()
        return place

    def show(self) -> None:
        """Nothing to do: the thread that exchanges copies, while it is at it."""

    def exchange(self, group: Group, scale: float, wire: DType | None) -> None:  # noqa: ARG002 - nothing travels
        """Show what others add up, fold the rest from where it is, and copy the means to their places."""
        held, self._held = self._held, {}
        if scale != 1:
            held = {number: _scaled(gradient, scale) for number, gradient in held.items()}
        row, means = self._row(held), self._row(self._places)
        row.show(self._stage[0], even_part(len(self._bucket.cuts), group.size, group.rank))
        finish = _divide_by(group.size)
        group.fold_lanes(self._stage, self._folded, lanes=group.size, blocks=self._bucket.cuts, finish=finish, own=row)
        for cut in self._bucket.cuts:
            np.copyto(means[cut], self._folded[cut])

    def settle(self) -> None:
        """Nothing to do."""

    def _row(self, tensors: Mapping[int, torch.Tensor]) -> Held:
        entries = zip(self._bucket.entries, self.numbers, strict=True)
        return Held(self._bucket, {entry: tensors[number] for entry, number in entries})


def _scaled(gradient: torch.Tensor, scale: float) -> torch.Tensor:
    return gradient * scale if scale else torch.zeros_like(gradient)  # times 0 is not enough for what is not finite


def _divide_by(size: int) -> Finish:
    def divide(_: int, values: Array) -> None:
        np.multiply(values, values.dtype.type(1 / size), values)

    return divide


def make_parcels(named: Named, group: Group, bucket_bytes: int) -> tuple[Parcel, ...]:
    """Parcels for all the parameters, in the order in which they leave; all ranks call this together.

    Parameters of one type share their buckets.
    """
    by_type: dict[torch.dtype, list[int]] = {}
    for number, (_, parameter) in enumerate(named):
        by_type.setdefault(parameter.dtype, []).append(number)
    parcels: list[Parcel] = []
    for dtype, numbers in by_type.items():
        first = named[numbers[0]][1]
        entries = [Entry(named[number][0], named[number][1].numel()) for number in numbers]
        buckets = lay_out(entries, -(-bucket_bytes // dtype_of(first).itemsize)).buckets
        is_direct = dtype is torch.float32 and first.device.type == "cpu" and len(group.hosts) == 1
        make = _make_direct if is_direct else _make_placed
        parcels += make(named, numbers, buckets, group)
    # Backward comes to the first parameter of a bucket last: the later it is in the model, the sooner the bucket goes.
    return tuple(sorted(parcels, key=lambda parcel: min(parcel.numbers), reverse=True))


def _make_direct(named: Named, numbers: Sequence[int], buckets: Sequence[Bucket], group: Group) -> list[Parcel]:
    """Buckets that all go through one stage and one sum."""
    longest = max(bucket.length for bucket in buckets)
    stage, folded = group.allocate((1, longest)), group.allocate(longest, shared=True)
    return [
        DirectParcel(
            owned := tuple(numbers[entry] for entry in bucket.entries),
            bucket,
            {number: torch.zeros(named[number][1].shape) for number in owned},
            stage[:, : bucket.length],
            folded[: bucket.length],
        )
        for bucket in buckets
    ]


def _make_placed(named: Named, numbers: Sequence[int], buckets: Sequence[Bucket], group: Group) -> list[Parcel]:
    """Buckets that lie in one piece of memory."""
    first = named[numbers[0]][1]
    kind, stream = dtype_of(first), make_stream(first.device)
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
        places = {
            number: slot.rows[0, at].view(named[number][1].shape)
            for number, at in zip(owned, bucket.places, strict=True)
        }
        return PlacedParcel(owned, first.dtype, bucket.cuts, slot, places)

    return [make(bucket, start) for bucket, start in zip(buckets, starts, strict=False)]
