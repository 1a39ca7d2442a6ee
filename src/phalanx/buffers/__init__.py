"""What the bytes hold: element types, reductions, the canonical order of additions, and how a length is divided."""

from phalanx.buffers.dtype import Array, DType, as_bytes, round_to_bf16, widen_bf16
from phalanx.buffers.fold import Carry, cover, pieces
from phalanx.buffers.reduce import ReduceOp, accumulate, check, finish, fold, fold_pieces, square_norm, widen
from phalanx.buffers.shares import LaneShares
from phalanx.buffers.split import CHUNK, even_part, even_parts, own_lanes, slices

__all__ = [
    "CHUNK",
    "Array",
    "Carry",
    "DType",
    "LaneShares",
    "ReduceOp",
    "accumulate",
    "as_bytes",
    "check",
    "cover",
    "even_part",
    "even_parts",
    "finish",
    "fold",
    "fold_pieces",
    "own_lanes",
    "pieces",
    "round_to_bf16",
    "slices",
    "square_norm",
    "widen",
    "widen_bf16",
]
