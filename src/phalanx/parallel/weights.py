"""Weights where other ranks of the host can read them: who owns a piece updates it, and they take it from there."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from phalanx.group import Group
from phalanx.parallel.flat import Block
from phalanx.parallel.shards import Ownership
from phalanx.parallel.slots import as_tensor, dtype_of, make_stream, pin

_ALIGNED = 64  # elements: a parameter begins at the start of a cache line
_BUNDLE_BYTES = 8 << 20


class Weights:
    """Parameters of one type and device, moved to memory of the group.

    They travel in bundles, in the order of the parameters, so that the first can be used while the last are on the way.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], ownership: Ownership, group: Group) -> None:
        self._parameters = parameters
        self._group = group
        self._rank = group.rank
        first = parameters[0]
        starts = list(accumulate((-(-each.numel() // _ALIGNED) * _ALIGNED for each in parameters), initial=0))
        self._array = group.allocate(starts[-1], dtype_of(first))
        self._mirror = as_tensor(self._array, first.dtype)
        self._is_direct = make_stream(first.device) is None
        if not self._is_direct:
            pin(self._array)
        for start, parameter in zip(starts, parameters, strict=False):
            if self._is_direct:
                place = self._mirror[start : start + parameter.numel()].view(parameter.shape)
                place.copy_(parameter.data)
                parameter.data = place
            elif not parameter.is_contiguous():
                parameter.data = parameter.data.contiguous()
        self.bundles = _bundle(starts, ownership, first.element_size())
        """What travels together."""

    def parameters_of(self, bundle: "Bundle") -> list[torch.nn.Parameter]:
        """The parameters that some of a bundle is of."""
        return [self._parameters[entry] for entry in {piece.entry for piece in bundle.pieces}]

    def share(self, bundle: "Bundle") -> None:
        """Take what others own of a bundle; all ranks call this together, when they have updated their own."""
        if not self._is_direct:
            self._copy(bundle, is_own=True)
            torch.cuda.current_stream(self._parameters[0].device).synchronize()
        self._group.broadcast_blocks(self._array, blocks=bundle.places, owners=bundle.owners)
        if not self._is_direct:
            self._copy(bundle, is_own=False)

    def _copy(self, bundle: "Bundle", *, is_own: bool) -> None:
        """On a device: copy the own pieces out, or all others in."""
        for piece, place, owner in zip(bundle.pieces, bundle.places, bundle.owners, strict=True):
            if (owner == self._rank) == is_own:
                device = self._parameters[piece.entry].data.view(-1)[piece.start : piece.stop]
                host = self._mirror[place]
                (host if is_own else device).copy_(device if is_own else host, non_blocking=True)


class Bundle:
    """Pieces that travel together, their places in memory and their owners."""

    def __init__(self) -> None:
        self.pieces: list[Block] = []
        self.places: list[slice] = []
        self.owners: list[int] = []


def _bundle(starts: Sequence[int], ownership: Ownership, itemsize: int) -> list[Bundle]:
    found = [Bundle()]
    pairs = zip(ownership.pieces, ownership.owners, strict=True)
    for piece, owner in sorted(pairs, key=lambda pair: (pair[0].entry, pair[0].start)):
        if sum(place.stop - place.start for place in found[-1].places) * itemsize >= _BUNDLE_BYTES:
            found.append(Bundle())
        start = starts[piece.entry]
        found[-1].pieces.append(piece)
        found[-1].places.append(slice(start + piece.start, start + piece.stop))
        found[-1].owners.append(owner)
    return found
