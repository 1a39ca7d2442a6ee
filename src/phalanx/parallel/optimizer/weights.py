"""Weights where other ranks of the host can read them: who owns a piece updates it, and they take it from there."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from phalanx.buffers import Array
from phalanx.group import Group
from phalanx.parallel.reduction import Block, Ownership, align, as_tensor, dtype_of, is_staged, pin
from phalanx.transport import Pending

_LOT_BYTES = 8 << 20


class Lot:
    """Pieces of weights that travel together, with their places in memory and their owners."""

    def __init__(self) -> None:
        self.pieces: list[Block] = []
        self.places: list[slice] = []
        self.owners: list[int] = []
        self.elements = 0

    def add(self, piece: Block, start: int, owner: int) -> None:
        """Take a piece along, of a parameter that begins at ``start``."""
        self.pieces.append(piece)
        self.places.append(slice(start + piece.start, start + piece.stop))
        self.owners.append(owner)
        self.elements += piece.stop - piece.start


class Weights:
    """Parameters of one type and device, moved to memory of the group.

    They travel in lots, in the order of the parameters, so that the first can be used while the last are on the way.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], ownership: Ownership, group: Group) -> None:
        self._parameters = parameters
        self._group = group
        first = parameters[0]
        starts = list(accumulate((align(each.numel()) for each in parameters), initial=0))
        self._array = group.allocate(starts[-1], dtype_of(first))
        self._mirror = as_tensor(self._array, first.dtype)
        self._is_direct = not is_staged(first.device)
        if not self._is_direct:
            pin(self._array)
        for start, parameter in zip(starts, parameters, strict=False):
            if self._is_direct:
                place = self._mirror[start : start + parameter.numel()].view(parameter.shape)
                place.copy_(parameter.data)
                parameter.data = place
            elif not parameter.is_contiguous():
                parameter.data = parameter.data.contiguous()
        self._lots = _make_lots(starts, ownership, _LOT_BYTES // first.element_size())

    def begin(self) -> list["Arrival"]:
        """Begin to take what others own; all ranks call this together, when they have updated their own."""
        if not self._is_direct:
            for lot in self._lots:
                self._copy(lot, is_own=True)
            torch.cuda.current_stream(self._parameters[0].device).synchronize()
        return [
            Arrival(self, lot, self._group.broadcast_blocks_nowait(self._array, blocks=lot.places, owners=lot.owners))
            for lot in self._lots
        ]

    def end(self, lot: Lot) -> None:
        """A lot is here: bring it to the device, if there is one."""
        if not self._is_direct:
            self._copy(lot, is_own=False)

    def parameters_of(self, lot: Lot) -> list[torch.nn.Parameter]:
        """The parameters that some of a lot is of."""
        return [self._parameters[entry] for entry in {piece.parameter for piece in lot.pieces}]

    def _copy(self, lot: Lot, *, is_own: bool) -> None:
        """Copy the own pieces from the device, or all others to it."""
        for piece, place, owner in zip(lot.pieces, lot.places, lot.owners, strict=True):
            if (owner == self._group.rank) == is_own:
                device = self._parameters[piece.parameter].data.view(-1)[piece.start : piece.stop]
                host = self._mirror[place]
                (host if is_own else device).copy_(device if is_own else host, non_blocking=True)


class Arrival:
    """A lot on its way."""

    def __init__(self, weights: Weights, lot: Lot, pending: Pending[Array]) -> None:
        self._weights, self._lot, self._pending = weights, lot, pending
        self._is_here = False

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """What it is of."""
        return self._weights.parameters_of(self._lot)

    def wait(self) -> None:
        """Return when it is here."""
        if not self._is_here:
            self._pending.wait()  # its call has a deadline
            self._weights.end(self._lot)
            self._is_here = True


def _make_lots(starts: Sequence[int], ownership: Ownership, most: int) -> list[Lot]:
    lots = [Lot()]
    pairs = zip(ownership.blocks, ownership.owners, strict=True)
    for piece, owner in sorted(pairs, key=lambda pair: (pair[0].parameter, pair[0].start)):
        if lots[-1].elements >= most:
            lots.append(Lot())
        lots[-1].add(piece, starts[piece.parameter], owner)
    return lots
