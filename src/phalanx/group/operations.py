"""Calls of a group, checked: a call with wrong arguments changes nothing and sends nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from phalanx.buffers import CHUNK, Array, DType, LaneShares, ReduceOp, even_parts, slices
from phalanx.collectives import Call, Finish, LaneFold, Team, blocks_added_first, count_pieces
from phalanx.errors import ConfigError
from phalanx.group.arguments import (
    check_array,
    check_blocks,
    check_finish,
    check_rank,
    check_target,
    check_writable,
    checksum_blocks,
    flatten,
    parse_reduction,
    parse_wire,
)
from phalanx.group.tensors import as_array, is_number, like, put_in_array
from phalanx.wire import Collective, Signature

Result = TypeVar("Result")
Given = TypeVar("Given")
"""An array of numpy, or a tensor of torch on the CPU, and in some calls a number."""


Channel = tuple[str, int]
"""One direction between this rank and one peer. Calls on a channel keep their own order."""


@dataclass(slots=True)
class Operation(Generic[Result]):
    """A checked call: its signature, the method to call with its arguments, its result, and its channel or None.

    It has a method and arguments instead of a closure, which Python would call more slowly. If the result is known only
    afterwards, ``read`` returns it.
    """

    signature: Signature
    action: Callable[..., None]
    arguments: tuple[object, ...]
    result: Result
    channel: Channel | None = None
    read: Callable[[], Result] | None = None

    def perform(self, call: Call) -> Result:
        """Perform the operation as ``call``, which has its number and its deadline, and return the result."""
        self.action(call, *self.arguments)
        return self.result if self.read is None else self.read()


class Operations:
    """Makes operations of one team out of arguments."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def all_reduce(
        self, given: Given, op: ReduceOp | str, out: Given | None, wire: DType | str | None
    ) -> Operation[Given]:
        """Reduce all arrays into ``out``, or in place; or numbers."""
        if is_number(given):
            if out is not None:
                raise ConfigError("a number is returned, and not written into out: leave out away, or pass an array")
            return _of_number(given, lambda cell: self.all_reduce(cell, op, None, wire))
        array = as_array(given, "array")
        source_flat, dtype = flatten(array, "array")
        if out is None or out is given:
            check_writable(array, "array")
            target_flat = source_flat
        else:
            target_flat = check_target(as_array(out, "out"), array.shape, dtype, "out")
        reduction = parse_reduction(op, dtype)
        narrow = None if wire is None else parse_wire(wire, dtype)

        signature = make_signature(Collective.ALL_REDUCE, dtype, array.size, reduction)
        target = given if out is None else out
        return Operation(signature, self._team.all_reduce, (source_flat, target_flat, narrow), target)

    def fold_lanes(
        self,
        pieces: Array,
        out: Array,
        lanes: int | LaneShares,
        blocks: Sequence[slice] | None,
        finish: Finish | None,
        wire: DType | str | None,
        own: Mapping[int, Array] | None,
    ) -> Operation[Array]:
        """Write the sum of all lanes into ``out``."""
        flat, target, dtype, shares = self._lanes(pieces, out, lanes)
        found = tuple(slices(slice(0, out.size), CHUNK)) if blocks is None else blocks
        narrow = None if wire is None else parse_wire(wire, dtype)
        fold = LaneFold(shares, found, check_finish(finish, len(found)), narrow, self._own(own, found, None, pieces))

        signature = make_signature(Collective.FOLD_LANES, dtype, out.size)
        return Operation(signature, self._team.fold_lanes, (flat, target, fold), out)

    def scatter_lanes(
        self,
        pieces: Array,
        out: Array,
        lanes: int | LaneShares,
        blocks: Sequence[slice],
        owners: Sequence[int],
        finish: Finish | None,
        wire: DType | str | None,
        own: Mapping[int, Array] | None,
    ) -> Operation[Array]:
        """Write the sum of all lanes into ``out``, in the blocks that this rank owns."""
        flat, target, dtype, shares = self._lanes(pieces, out, lanes)
        check_blocks(blocks, owners, out.size, self._team.size)
        narrow, found = None if wire is None else parse_wire(wire, dtype), self._own(own, blocks, owners, pieces)
        fold = LaneFold(shares, blocks, check_finish(finish, len(blocks)), narrow, found, owners)

        signature = make_signature(
            Collective.SCATTER_LANES, dtype, out.size, blocks=checksum_blocks(blocks, owners, shares.count)
        )
        return Operation(signature, self._team.fold_lanes, (flat, target, fold), out)

    def _lanes(self, pieces: Array, out: Array, lanes: int | LaneShares) -> tuple[Array, Array, DType, LaneShares]:
        """Return flat views of ``pieces`` and ``out``, their type, and who computes which lanes."""
        flat, dtype = flatten(check_array(pieces, "pieces"), "pieces")
        size, count = self._team.size, lanes.count if isinstance(lanes, LaneShares) else lanes
        if not dtype.is_float or count < size or (isinstance(lanes, LaneShares) and len(lanes.by_rank) != size):
            raise ConfigError(f"{count} lanes of {dtype.label} cannot be shared by {size} ranks")
        shares = lanes if isinstance(lanes, LaneShares) else LaneShares.even(lanes, size)
        shape = (count_pieces(shares)[self._team.rank], out.size)
        if pieces.shape != shape:
            raise ConfigError(f"pieces must have shape {shape}, one row a piece, not {pieces.shape}")
        return flat, check_target(check_array(out, "out"), (out.size,), dtype, "out"), dtype, shares

    def _own(
        self,
        own: Mapping[int, Array] | None,
        blocks: Sequence[slice],
        owners: Sequence[int] | None,
        pieces: Array,
    ) -> Mapping[int, Array]:
        """Return the blocks that lie outside ``pieces``; ConfigError if this rank is not the first to add them up."""
        if not own:
            return {}
        if len(pieces) != 1:
            raise ConfigError(f"own is for a rank with one piece, and this one has {len(pieces)}: put them into pieces")
        added = set(blocks_added_first(len(blocks), owners, self._team.rank, self._team.topology))
        for number, values in own.items():
            if number not in added:
                raise ConfigError(
                    f"rank {self._team.rank} is not the first to add up block {number}: leave it out of own"
                )
            shape = (blocks[number].stop - blocks[number].start,)
            if values.shape != shape or values.dtype != pieces.dtype or not values.flags.c_contiguous:
                found = f"{values.shape} and {values.dtype}"
                words = f"own[{number}] must be contiguous and have shape {shape} and type {pieces.dtype}"
                raise ConfigError(f"{words}, not {found}")
        return own

    def reduce(self, given: Given, root: int, op: ReduceOp | str) -> Operation[Given]:
        """Reduce all arrays into the root's array; the other ranks keep theirs."""
        if is_number(given):
            return _of_number(given, lambda cell: self.reduce(cell, root, op))
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        reduction, is_root = parse_reduction(op, dtype), self._rank(root, "root") == self._team.rank
        if is_root:
            check_writable(array, "array")

        signature = make_signature(Collective.REDUCE, dtype, array.size, reduction, root)
        return Operation(signature, self._team.reduce, (flat, flat if is_root else None), given)

    def reduce_scatter(self, given: Given, op: ReduceOp | str, out: Given | None) -> Operation[Given]:
        """Reduce all arrays, and keep this rank's part, cut along the first axis."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        if array.ndim == 0:
            raise ConfigError("a single value cannot be scattered: pass an array with at least one axis")
        reduction, row = parse_reduction(op, dtype), math.prod(array.shape[1:])
        rows = even_parts(array.shape[0], self._team.size)
        parts = [slice(part.start * row, part.stop * row) for part in rows]
        own = rows[self._team.rank]
        shape = (own.stop - own.start, *array.shape[1:])
        target = np.empty(shape, array.dtype) if out is None else as_array(out, "out")
        target_flat = check_target(target, shape, dtype, "out")

        signature = make_signature(Collective.REDUCE_SCATTER, dtype, array.size, reduction)
        result = like(given, target) if out is None else out
        return Operation(signature, self._team.reduce_scatter, (flat, parts, target_flat), result)

    def all_gather(self, given: Given, out: Given | None) -> Operation[Given]:
        """Collect the arrays of all ranks, stacked by rank."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        shape = (self._team.size, *array.shape)
        target = np.empty(shape, array.dtype) if out is None else as_array(out, "out")
        target_flat = check_target(target, shape, dtype, "out")
        parts = even_parts(len(target_flat), self._team.size)

        signature = make_signature(Collective.ALL_GATHER, dtype, len(target_flat))
        result = like(given, target) if out is None else out
        return Operation(signature, self._team.all_gather, (flat, parts, target_flat), result)

    def broadcast(self, given: Given, root: int) -> Operation[Given]:
        """Copy the root's array to all ranks."""
        if is_number(given):
            return _of_number(given, lambda cell: self.broadcast(cell, root))
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        if self._rank(root, "root") != self._team.rank:
            check_writable(array, "array")

        signature = make_signature(Collective.BROADCAST, dtype, array.size, root=root)
        return Operation(signature, self._team.broadcast, (flat,), given)

    def broadcast_blocks(self, given: Given, blocks: Sequence[slice], owners: Sequence[int]) -> Operation[Given]:
        """Copy each block from its owner to all ranks."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        check_writable(array, "array")
        check_blocks(blocks, owners, array.size, self._team.size)

        signature = make_signature(
            Collective.BROADCAST_BLOCKS, dtype, array.size, blocks=checksum_blocks(blocks, owners)
        )
        return Operation(signature, self._team.broadcast_blocks, (flat, blocks, owners), given)

    def gather(self, given: Given, root: int) -> Operation[Given | None]:
        """Collect the arrays of all ranks, stacked by rank, on the root; the result is None on other ranks."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        is_root = self._rank(root, "root") == self._team.rank
        target = np.empty((self._team.size, *array.shape), array.dtype) if is_root else None

        signature = make_signature(Collective.GATHER, dtype, array.size * self._team.size, root=root)
        target_flat = None if target is None else flatten(target, "out")[0]
        return Operation(
            signature, self._team.gather, (flat, target_flat), None if target is None else like(given, target)
        )

    def scatter(self, given: Given | None, out: Given, root: int) -> Operation[Given]:
        """Copy this rank's row of the root's array into ``out``."""
        into = as_array(out, "out")
        dtype = DType.of(into)
        target = check_target(into, into.shape, dtype, "out")
        source = None
        if self._rank(root, "root") == self._team.rank:
            shape = (self._team.size, *into.shape)
            array = None if given is None else as_array(given, "array")
            if array is None or array.shape != shape or DType.of(array) is not dtype:
                raise ConfigError(f"the root must pass an array of shape {shape} and type {dtype.label} to scatter")
            source = flatten(array, "array")[0]

        signature = make_signature(Collective.SCATTER, dtype, into.size * self._team.size, root=root)
        return Operation(signature, self._team.scatter, (source, target), out)

    def all_to_all(self, given: Given) -> Operation[Given]:
        """Send part r of the array, cut along the first axis, to rank r, and collect the parts for this rank."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        if array.ndim == 0 or array.shape[0] % self._team.size:
            raise ConfigError(
                f"the first axis of {array.shape} must be a multiple of {self._team.size}, one part a rank"
            )
        target = np.empty(array.shape, array.dtype)

        signature = make_signature(Collective.ALL_TO_ALL, dtype, array.size)
        return Operation(signature, self._team.all_to_all, (flat, flatten(target, "out")[0]), like(given, target))

    def send(self, given: Given, to: int) -> Operation[None]:
        """Send an array to one peer."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        self._peer(to, "to")
        signature = make_signature(Collective.SEND, dtype, array.size)
        return Operation(signature, self._team.send, (flat, to), None, ("to", to))

    def recv(self, given: Given, source: int) -> Operation[Given]:
        """Receive one peer's array."""
        array = as_array(given, "array")
        dtype = DType.of(array)
        flat = check_target(array, array.shape, dtype, "array")
        self._peer(source, "source")

        signature = make_signature(Collective.SEND, dtype, array.size)
        return Operation(signature, self._team.receive, (flat, source), given, ("from", source))

    def send_tagged(self, array: Array, to: int) -> Operation[None]:
        """Send an array to one peer, with the number of the call as tag."""
        flat, dtype = flatten(array, "array")
        self._peer(to, "to")
        signature = make_signature(Collective.SEND, dtype, array.size)
        return Operation(signature, self._team.tagged.send, (flat, to), None, ("tagged to", to))

    def recv_tagged(self, array: Array, source: int | None) -> tuple[Signature, Array]:
        """Return the signature of a message from one peer or any, and where it goes."""
        dtype = DType.of(array)
        if source is not None:
            self._peer(source, "source")
        return make_signature(Collective.SEND, dtype, array.size), check_target(array, array.shape, dtype, "array")

    def barrier(self) -> Operation[None]:
        """Wait for all ranks."""
        return Operation(make_signature(Collective.BARRIER, DType.U8, 0), self._team.barrier, (), None)

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Operation[list[Array]]:
        """Make an array that the ranks of a host share. The result is a list with this array."""
        size, made = math.prod(shape), list[Array]()
        return Operation(make_signature(Collective.ALLOCATE, dtype, size), self._allocate, (shape, dtype, made), made)

    def _allocate(self, call: Call, shape: tuple[int, ...], dtype: DType, made: list[Array]) -> None:
        made.append(self._team.allocate(call, math.prod(shape) * dtype.itemsize).view(dtype.numpy).reshape(shape))

    def _rank(self, rank: int, name: str) -> int:
        return check_rank(rank, name, self._team.size)

    def _peer(self, rank: int, name: str) -> None:
        if self._rank(rank, name) == self._team.rank:
            raise ConfigError(f"{name} is this rank itself ({rank}): copy the array instead")


def _of_number(number: Given, make: Callable[[Array], Operation[Array]]) -> Operation[Given]:
    """Return the operation that ``make`` returns for an array with a number; its result is a number of that type."""
    cell = put_in_array(number, "array")
    found = make(cell)

    def read() -> Any:  # Any: of the type of number
        return cell[()] if isinstance(number, np.generic) else cell.item()

    return Operation(found.signature, found.action, found.arguments, number, read=read)


@lru_cache(maxsize=4096)  # people make the same few calls again and again
def make_signature(
    collective: Collective,
    dtype: DType,
    count: int,
    op: ReduceOp | None = None,
    root: int | None = None,
    blocks: int = 0,
) -> Signature:
    """Return the signature of a call."""
    return Signature(collective, dtype, count, op, root, blocks)


def check_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple; ConfigError if an axis is negative or no integer."""
    axes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(axis, int | np.integer) and axis >= 0 for axis in axes):
        raise ConfigError(f"a shape has lengths of 0 or more, not {shape!r}")
    return tuple(int(axis) for axis in axes)


def parse_collective(name: str) -> Collective:
    """Return the collective with this name, such as ``"all_reduce"``."""
    known = {each.name.lower(): each for each in Collective if each is not Collective.ALLOCATE}
    if name not in known:
        raise ConfigError(f"there is no collective {name!r}: use one of {', '.join(known)}")
    return known[name]
