"""Calls of a group, checked: a call with wrong arguments changes nothing and sends nothing."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from phalanx.buffers import CHUNK, Array, DType, LaneShares, ReduceOp, even_parts, slices
from phalanx.collectives import Call, Finish, LaneFold, Team, blocks_added_first, count_pieces
from phalanx.errors import CollectiveMismatch, ConfigError
from phalanx.group.arguments import (
    check_array,
    check_blocks,
    check_finish,
    check_target,
    check_writable,
    checksum_blocks,
    flatten,
    parse_reduction,
    parse_wire,
)
from phalanx.wire import Collective, Signature

Result = TypeVar("Result")


Channel = tuple[str, int]
"""One direction between this rank and one peer. Calls on a channel keep their own order."""


@dataclass(slots=True)
class Operation(Generic[Result]):
    """A checked call: its signature, the method to call with its arguments, its result, and its channel or None.

    It has a method and arguments instead of a closure, which Python would call more slowly.
    """

    signature: Signature
    action: Callable[..., None]
    arguments: tuple[object, ...]
    result: Result
    channel: Channel | None = None

    def perform(self, call: Call) -> Result:
        """Perform the operation as ``call``, which has its number and its deadline, and return the result."""
        self.action(call, *self.arguments)
        return self.result


class Operations:
    """Makes operations of one team out of arguments."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def all_reduce(
        self, array: Array, op: ReduceOp | str, out: Array | None, wire: DType | str | None
    ) -> Operation[Array]:
        """Reduce all arrays into ``out``, or in place."""
        target = array if out is None else out
        source_flat, dtype = flatten(array, "array")
        target_flat = source_flat if target is array else check_target(target, array.shape, dtype, "out")
        if target is array:
            check_writable(array, "array")
        reduction = parse_reduction(op, dtype)
        narrow = None if wire is None else parse_wire(wire, dtype)

        signature = _signature(Collective.ALL_REDUCE, dtype, array.size, reduction)
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

        signature = _signature(Collective.FOLD_LANES, dtype, out.size)
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

        signature = _signature(
            Collective.SCATTER_LANES, dtype, out.size, blocks=checksum_blocks(blocks, owners, shares.count)
        )
        return Operation(signature, self._team.fold_lanes, (flat, target, fold), out)

    def _lanes(self, pieces: Array, out: Array, lanes: int | LaneShares) -> tuple[Array, Array, DType, LaneShares]:
        """Return flat views of ``pieces`` and ``out``, their type, and who computes which lanes."""
        flat, dtype = flatten(pieces, "pieces")
        size, count = self._team.size, lanes.count if isinstance(lanes, LaneShares) else lanes
        if not dtype.is_float or count < size or (isinstance(lanes, LaneShares) and len(lanes.by_rank) != size):
            raise ConfigError(f"{count} lanes of {dtype.label} cannot be shared by {size} ranks")
        shares = lanes if isinstance(lanes, LaneShares) else LaneShares.even(lanes, size)
        shape = (count_pieces(shares)[self._team.rank], out.size)
        if pieces.shape != shape:
            raise ConfigError(f"pieces must have shape {shape}, one row a piece, not {pieces.shape}")
        return flat, check_target(out, (out.size,), dtype, "out"), dtype, shares

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

    def reduce(self, array: Array, root: int, op: ReduceOp | str) -> Operation[Array]:
        """Reduce all arrays into the root's array; the other ranks keep theirs."""
        flat, dtype = flatten(array, "array")
        reduction, is_root = parse_reduction(op, dtype), self._rank(root, "root") == self._team.rank
        if is_root:
            check_writable(array, "array")

        signature = _signature(Collective.REDUCE, dtype, array.size, reduction, root)
        return Operation(signature, self._team.reduce, (flat, flat if is_root else None), array)

    def reduce_scatter(self, array: Array, op: ReduceOp | str, out: Array | None) -> Operation[Array]:
        """Reduce all arrays, and keep this rank's part, cut along the first axis."""
        flat, dtype = flatten(array, "array")
        if array.ndim == 0:
            raise ConfigError("a single value cannot be scattered: pass an array with at least one axis")
        reduction, row = parse_reduction(op, dtype), math.prod(array.shape[1:])
        rows = even_parts(array.shape[0], self._team.size)
        parts = [slice(part.start * row, part.stop * row) for part in rows]
        own = rows[self._team.rank]
        shape = (own.stop - own.start, *array.shape[1:])
        target = np.empty(shape, array.dtype) if out is None else out
        target_flat = check_target(target, shape, dtype, "out")

        signature = _signature(Collective.REDUCE_SCATTER, dtype, array.size, reduction)
        return Operation(signature, self._team.reduce_scatter, (flat, parts, target_flat), target)

    def all_gather(self, array: Array, out: Array | None) -> Operation[Array]:
        """Collect the arrays of all ranks, stacked by rank."""
        flat, dtype = flatten(array, "array")
        shape = (self._team.size, *array.shape)
        target = np.empty(shape, array.dtype) if out is None else out
        target_flat = check_target(target, shape, dtype, "out")
        parts = even_parts(len(target_flat), self._team.size)

        signature = _signature(Collective.ALL_GATHER, dtype, len(target_flat))
        return Operation(signature, self._team.all_gather, (flat, parts, target_flat), target)

    def all_gather_unequal(self, array: Array) -> Operation[list[Array]]:
        """Collect arrays that may differ in the length of their first axis: first the lengths, then the data."""
        flat, dtype = flatten(array, "array")
        if array.ndim == 0:
            raise ConfigError("a single value has no length: use all_gather")
        signature = _signature(Collective.ALL_GATHER, DType.I64, 3 * self._team.size)
        listed: list[Array] = []
        return Operation(signature, self._gather_unequal, (array, flat, dtype, listed), listed)

    def _gather_unequal(self, call: Call, array: Array, flat: Array, dtype: DType, listed: list[Array]) -> None:
        row, size, names = math.prod(array.shape[1:]), self._team.size, self._team.names
        told = np.empty((size, 3), np.int64)
        words = np.array([array.shape[0], row, dtype.code], np.int64)
        self._team.all_gather(call, words, even_parts(told.size, size), told.reshape(-1))
        for rank, (_, its_row, its_code) in enumerate(told.tolist()):
            if (its_row, its_code) != (row, dtype.code):
                theirs = f"rows of {its_row} {DType.from_code(its_code).label}"
                ours = f"rows of {row} {dtype.label}"
                raise CollectiveMismatch.between(names[rank], theirs, names[self._team.rank], ours)
        ends = np.cumsum([0, *told[:, 0]]) * row
        parts = [slice(int(start), int(stop)) for start, stop in itertools.pairwise(ends)]
        target = np.empty(int(ends[-1]), dtype.numpy)
        # Without a group, this half is not compared with other ranks: a slow rank may still be in the first half.
        data = call._replace(signature=_signature(Collective.ALL_GATHER, dtype, len(target)), group="")
        self._team.all_gather(data, flat, parts, target)
        listed += [target[part].view(array.dtype).reshape(-1, *array.shape[1:]) for part in parts]

    def broadcast(self, array: Array, root: int) -> Operation[Array]:
        """Copy the root's array to all ranks."""
        flat, dtype = flatten(array, "array")
        if self._rank(root, "root") != self._team.rank:
            check_writable(array, "array")

        signature = _signature(Collective.BROADCAST, dtype, array.size, root=root)
        return Operation(signature, self._team.broadcast, (flat,), array)

    def broadcast_blocks(self, array: Array, blocks: Sequence[slice], owners: Sequence[int]) -> Operation[Array]:
        """Copy each block from its owner to all ranks."""
        flat, dtype = flatten(array, "array")
        check_writable(array, "array")
        check_blocks(blocks, owners, array.size, self._team.size)

        signature = _signature(Collective.BROADCAST_BLOCKS, dtype, array.size, blocks=checksum_blocks(blocks, owners))
        return Operation(signature, self._team.broadcast_blocks, (flat, blocks, owners), array)

    def gather(self, array: Array, root: int) -> Operation[Array | None]:
        """Collect the arrays of all ranks, stacked by rank, on the root; the result is None on other ranks."""
        flat, dtype = flatten(array, "array")
        is_root = self._rank(root, "root") == self._team.rank
        target = np.empty((self._team.size, *array.shape), array.dtype) if is_root else None

        signature = _signature(Collective.GATHER, dtype, array.size * self._team.size, root=root)
        target_flat = None if target is None else flatten(target, "out")[0]
        return Operation(signature, self._team.gather, (flat, target_flat), target)

    def scatter(self, array: Array | None, out: Array, root: int) -> Operation[Array]:
        """Copy this rank's row of the root's array into ``out``."""
        dtype = DType.of(check_array(out, "out"))
        target = check_target(out, out.shape, dtype, "out")
        source = None
        if self._rank(root, "root") == self._team.rank:
            shape = (self._team.size, *out.shape)
            if array is None or array.shape != shape or DType.of(check_array(array, "array")) is not dtype:
                raise ConfigError(f"the root must pass an array of shape {shape} and type {dtype.label} to scatter")
            source = flatten(array, "array")[0]

        signature = _signature(Collective.SCATTER, dtype, out.size * self._team.size, root=root)
        return Operation(signature, self._team.scatter, (source, target), out)

    def all_to_all(self, array: Array) -> Operation[Array]:
        """Send part r of the array, cut along the first axis, to rank r, and collect the parts for this rank."""
        flat, dtype = flatten(array, "array")
        if array.ndim == 0 or array.shape[0] % self._team.size:
            raise ConfigError(
                f"the first axis of {array.shape} must be a multiple of {self._team.size}, one part a rank"
            )
        target = np.empty(array.shape, array.dtype)

        signature = _signature(Collective.ALL_TO_ALL, dtype, array.size)
        return Operation(signature, self._team.all_to_all, (flat, flatten(target, "out")[0]), target)

    def send(self, array: Array, to: int) -> Operation[None]:
        """Send an array to one peer."""
        flat, dtype = flatten(array, "array")
        self._peer(to, "to")
        signature = _signature(Collective.SEND, dtype, array.size)
        return Operation(signature, self._team.send, (flat, to), None, ("to", to))

    def recv(self, array: Array, source: int) -> Operation[Array]:
        """Receive one peer's array."""
        dtype = DType.of(check_array(array, "array"))
        flat = check_target(array, array.shape, dtype, "array")
        self._peer(source, "source")

        signature = _signature(Collective.SEND, dtype, array.size)
        return Operation(signature, self._team.receive, (flat, source), array, ("from", source))

    def barrier(self) -> Operation[None]:
        """Wait for all ranks."""
        return Operation(_signature(Collective.BARRIER, DType.U8, 0), self._team.barrier, (), None)

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Operation[list[Array]]:
        """Make an array that the ranks of a host share. The result is a list with this array."""
        size, made = math.prod(shape), list[Array]()
        return Operation(_signature(Collective.ALLOCATE, dtype, size), self._allocate, (shape, dtype, made), made)

    def _allocate(self, call: Call, shape: tuple[int, ...], dtype: DType, made: list[Array]) -> None:
        made.append(self._team.allocate(call, math.prod(shape) * dtype.itemsize).view(dtype.numpy).reshape(shape))

    def _rank(self, rank: int, name: str) -> int:
        if not (isinstance(rank, int) and 0 <= rank < self._team.size):
            raise ConfigError(f"{name} must be a rank from 0 to {self._team.size - 1}, not {rank!r}")
        return rank

    def _peer(self, rank: int, name: str) -> None:
        if self._rank(rank, name) == self._team.rank:
            raise ConfigError(f"{name} is this rank itself ({rank}): copy the array instead")


@lru_cache(maxsize=4096)  # people make the same few calls again and again
def _signature(
    collective: Collective,
    dtype: DType,
    count: int,
    op: ReduceOp | None = None,
    root: int | None = None,
    blocks: int = 0,
) -> Signature:
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
