"""What the bytes hold: element types, reductions, the canonical order of additions, and how a length is divided."""

from phalanx.buffers.dtype import Array, DType, as_bytes, round_to_bf16, widen_bf16
from phalanx.buffers.fold import Carry, cover, pieces
from phalanx.buffers.reduce import (
    FoldPlan,
    ReduceOp,
    accumulate,
    check,
    finish,
    fold,
    fold_pieces,
    plan_fold,
    square_norm,
    widen,
)
from phalanx.buffers.shares import LaneShares, plan_lanes
from phalanx.buffers.split import CHUNK, consecutive, even_part, even_parts, own_lanes, slices

__all__ = [
    "CHUNK",
    "Array",
    "Carry",
    "DType",
    "FoldPlan",
    "LaneShares",
    "ReduceOp",
    "accumulate",
    "as_bytes",
    "check",
    "consecutive",
    "cover",
    "even_part",
    "even_parts",
    "finish",
    "fold",
    "fold_pieces",
    "own_lanes",
    "pieces",
    "plan_fold",
    "plan_lanes",
    "round_to_bf16",
    "slices",
    "square_norm",
    "widen",
    "widen_bf16",
]
