"""The arguments of calls: checks, and conversion to the types that the layers below use."""

import itertools
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, check
from phalanx.collectives import Finish
from phalanx.errors import ConfigError


def check_array(array: Array, name: str) -> Array:
    """Return the array; ConfigError if it is not a numpy array."""
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{name} must be a numpy array, not {type(array).__name__}: pass np.asarray(...) or .numpy()")
    return array


def flatten(array: Array, name: str) -> tuple[Array, DType]:
    """Return a flat view of the array, and its element type."""
    dtype = DType.of(array)
    if not array.flags.c_contiguous:
        raise ConfigError(f"{name} is not contiguous: pass np.ascontiguousarray({name})")
    flat = array if array.ndim == 1 else array.reshape(-1)  # a new view costs microseconds where its address is asked
    return (flat if flat.dtype == dtype.numpy else flat.view(dtype.numpy)), dtype


def check_target(array: Array, shape: tuple[int, ...], dtype: DType, name: str) -> Array:
    """Return a flat view of the array; ConfigError unless it has this shape and type and can be written."""
    flat, found = flatten(array, name)
    if found is not dtype or array.shape != shape:
        raise ConfigError(f"{name} must have shape {shape} and type {dtype.label}, not {array.shape} and {found.label}")
    check_writable(array, name)
    return flat


def check_rank(rank: int, name: str, size: int) -> int:
    """Return the rank; ConfigError if a group of ``size`` has no such rank."""
    if not (isinstance(rank, int) and 0 <= rank < size):
        raise ConfigError(f"{name} must be a rank from 0 to {size - 1}, not {rank!r}")
    return rank


def check_writable(array: Array, name: str) -> None:
    """Raise ConfigError if the array is read-only."""
    if not array.flags.writeable:
        raise ConfigError(f"{name} is read-only, and the result is written into it: pass a copy")


def parse_reduction(op: ReduceOp | str, dtype: DType) -> ReduceOp:
    """Return the reduction that ``op`` names; ConfigError if elements of ``dtype`` cannot be reduced so."""
    reduction = ReduceOp.parse(op)
    check(reduction, dtype)
    return reduction


def parse_wire(wire: DType | str, dtype: DType) -> DType | None:
    """Return the type that elements of ``dtype`` have on the wire; None if it is ``dtype`` itself."""
    narrow = DType.parse(wire)
    if narrow is dtype:
        return None
    if (narrow, dtype) != (DType.BF16, DType.F32):
        raise ConfigError(f"{dtype.label} cannot travel as {narrow.label}: only f32 can, as bf16")
    return narrow


def check_blocks(blocks: Sequence[slice], owners: Sequence[int], length: int, size: int) -> None:
    """Raise ConfigError unless each block has an owner and the blocks lie, in order, within ``length`` elements."""
    if len(owners) != len(blocks):
        raise ConfigError(f"owners must have a rank for each of the {len(blocks)} blocks, not {len(owners)} ranks")
    strangers = [owner for owner in owners if owner not in range(size)]
    if strangers:
        raise ConfigError(f"owners must be ranks from 0 to {size - 1}, not {strangers[0]!r}")
    end = 0
    for block in blocks:
        if block.indices(length) != (block.start, block.stop, 1) or not end <= block.start < block.stop:
            raise ConfigError(
                f"blocks must be slices with elements, in order, apart, and within 0 to {length}: {block} is not"
            )
        end = block.stop


def check_finish(finish: Finish | None, blocks: int) -> Finish:
    """Return the finish, or an empty one; ConfigError unless its arrays are f64, with a square for each block."""
    if finish is None:
        return Finish()
    for name, array in (("counts", finish.counts), ("squares", finish.squares)):
        if array is not None and array.dtype != np.float64:
            raise ConfigError(f"the {name} of a Finish are f64, not {array.dtype}: pass an array of float64")
    if finish.squares is not None and finish.squares.shape != (blocks,):
        raise ConfigError(f"a Finish has one square for each of the {blocks} blocks, not {finish.squares.shape}")
    return finish


def checksum_blocks(blocks: Sequence[slice], owners: Sequence[int], lanes: int = 0) -> int:
    """Return a checksum by which ranks notice that their blocks, owners or lanes differ; see docs/wire-format.md."""
    owned = ((block.start, block.stop, owner) for block, owner in zip(blocks, owners, strict=True))
    return crc32(np.array([lanes, *itertools.chain.from_iterable(owned)], "<u8").tobytes()) & 0xFFFF
