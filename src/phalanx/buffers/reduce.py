"""Folding buffers: sum, mean, maximum, minimum, product and the bitwise ones, in the canonical order.

f16 and bf16 are accumulated in f32 and rounded once, at the end. Overflow and NaN cause no warnings: callers look for
them in the result.
"""

import math
from collections.abc import Sequence
from contextvars import copy_context
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phalanx.buffers.dtype import Array, DType, round_to_bf16, widen_bf16
from phalanx.buffers.fold import halves
from phalanx.buffers.split import CHUNK, slices
from phalanx.errors import ConfigError

# numpy keeps its error state in a context variable. Running in a copy of a silent context costs a tenth of entering
# np.errstate, and a copy for each call lets threads fold at the same time.
_SILENT = copy_context()
_SILENT.run(np.seterr, all="ignore")

_ROW = 4096


class ReduceOp(Enum):
    """How buffers are folded into one. MAX and MIN pass NaN on; of bools, SUM and MAX are *or*, the others *and*."""

    SUM = (1, "sum", np.add)
    MEAN = (2, "mean", np.add)
    MAX = (3, "max", np.maximum)
    MIN = (4, "min", np.minimum)
    PRODUCT = (5, "product", np.multiply)
    BITWISE_AND = (6, "bitwise_and", np.bitwise_and)
    BITWISE_OR = (7, "bitwise_or", np.bitwise_or)
    BITWISE_XOR = (8, "bitwise_xor", np.bitwise_xor)

    code: int
    label: str
    ufunc: np.ufunc
    is_mean: bool
    is_bitwise: bool

    def __init__(self, code: int, label: str, ufunc: np.ufunc) -> None:
        self.code = code
        self.label = label
        self.ufunc = ufunc
        self.is_mean = label == "mean"
        self.is_bitwise = label.startswith("bitwise")

    @classmethod
    def from_code(cls, code: int) -> "ReduceOp":
        """Return the operation with this wire code; ValueError if there is none."""
        for op in cls:
            if op.code == code:
                return op
        raise ValueError(f"no reduction has the code {code}")

    @classmethod
    def parse(cls, value: "ReduceOp | str") -> "ReduceOp":
        """Return the operation that an argument names: ``"mean"`` or a ReduceOp."""
        if isinstance(value, cls):
            return value
        for op in cls:
            if op.label == value:
                return op
        raise ConfigError(f"{value!r} is no reduction: use one of {', '.join(op.label for op in cls)}")


def check(op: ReduceOp, dtype: DType) -> None:
    """Raise ConfigError if elements of ``dtype`` have no such reduction."""
    if op.is_mean and not dtype.is_float:
        raise ConfigError(
            f"the mean of integers is no integer, and these are {dtype.label}: use SUM and divide, or convert to f64"
        )
    if op.is_bitwise and dtype.is_float:
        raise ConfigError(f"floats have no {op.label}, and these are {dtype.label}: view their bits as integers")


def fold(op: ReduceOp, dtype: DType, inputs: Sequence[Array], out: Array) -> None:
    """Write the reduction of one or more equally long buffers into ``out``, with input i as leaf i of the tree.

    ``out`` may be one of the inputs. Reads and writes each element once; needs a chunk of scratch for each level.
    """
    _SILENT.copy().run(_fold, op, dtype, inputs, out)


def fold_pieces(
    dtype: DType,
    lanes: Sequence[range],
    inputs: Sequence[Array],
    out: Array,
    *,
    divisor: float | None = None,
    is_measured: bool = False,
) -> float:
    """Write the sum of pieces into ``out``. Input i is the sum of ``lanes[i]``, and inputs are in the order of lanes.

    The sum is divided by ``divisor`` before it is rounded. Returns its sum of squares if it ``is_measured``, else 0.
    Pass at most a chunk, so that the sum is still in cache for both.
    """
    return _SILENT.copy().run(_fold_pieces, dtype, tuple(lanes), inputs, out, divisor, is_measured)


def square_norm(values: Array) -> float:
    """Return the sum of squares. If a value is not finite, the result is not finite either.

    Squares of 4,096 values at a time are summed in the type of the values, and these sums are added in f64. Summing
    everything in f64 takes five times as long, and a BLAS may use many threads for longer products.
    """
    return _SILENT.copy().run(_square_norm, values)


def accumulate(op: ReduceOp, dtype: DType, inputs: Sequence[Array], out: Array) -> None:
    """Fold as ``fold`` does, but leave accumulators in ``out``: neither divided for a mean nor rounded."""
    partial = ReduceOp.SUM if op.is_mean else op
    fold(partial, dtype.accumulator, [widen(dtype, each) for each in inputs], out)


def finish(op: ReduceOp, dtype: DType, accumulated: Array, count: int, out: Array) -> None:
    """Write an accumulated reduction of ``count`` buffers into ``out`` as ``dtype``: divided for a mean, and rounded.

    ``accumulated`` is left as it is, unless it is ``out``.
    """
    _SILENT.copy().run(_finish, op, dtype, accumulated, count, out)


def widen(dtype: DType, array: Array) -> Array:
    """Return the elements in the accumulator type: a copy if that differs from ``dtype``, else the array itself."""
    return _widen(dtype, array, np.empty(len(array), np.float32)) if dtype.is_narrow else array


def _fold(op: ReduceOp, dtype: DType, inputs: Sequence[Array], out: Array) -> None:
    check(op, dtype)
    count, length = len(inputs), len(out)
    if count == 1:
        np.copyto(out, inputs[0])
        return
    if count == 2 and not op.is_mean and not dtype.is_narrow:
        op.ufunc(inputs[0], inputs[1], out=out)  # a single pass gains nothing from chunks
        return
    program = plan_fold(_leaves(count), dtype.is_narrow, _may_use_out(dtype, inputs, out))
    scratch = np.empty((program.rows, min(CHUNK, length)), dtype.accumulator.numpy)
    if length <= CHUNK:
        _run_program(program, op, dtype, inputs, scratch, out)
        return
    for chunk in slices(slice(0, length), CHUNK):
        rows = scratch[:, : chunk.stop - chunk.start]
        _run_program(program, op, dtype, [each[chunk] for each in inputs], rows, out[chunk])


def _fold_pieces(
    dtype: DType,
    lanes: tuple[range, ...],
    inputs: Sequence[Array],
    out: Array,
    divisor: float | None,
    is_measured: bool,  # noqa: FBT001 - only fold_pieces calls this, and by name nothing passes through a context
) -> float:
    may_use_out = _may_use_out(dtype, inputs, out)
    if len(inputs) == 1:
        values = widen(dtype, inputs[0])
        if may_use_out:  # else the only piece is the place of the sum
            np.copyto(out, values)
            values = out
    else:
        program = plan_fold(lanes, dtype.is_narrow, may_use_out)
        scratch = np.empty((program.rows, len(out)), dtype.accumulator.numpy)
        _run_steps(program, ReduceOp.SUM, dtype, [*inputs, *scratch, out])
        values = scratch[0] if dtype.is_narrow else out
    if divisor is not None:
        np.divide(values, values.dtype.type(divisor), out=values)
    square = _square_norm(values) if is_measured else 0.0
    if dtype.is_narrow:
        _round(dtype, values, out)
    return square


def _square_norm(values: Array) -> float:
    whole = len(values) // _ROW * _ROW
    rows, rest = values[:whole].reshape(-1, _ROW), values[whole:]
    total = float(np.vecdot(rows, rows).sum(dtype=np.float64)) + float(np.dot(rest, rest))
    if math.isfinite(total):
        return total
    return float(np.square(values, dtype=np.float64).sum())  # squares of large values need more room than f32 has


def _may_use_out(dtype: DType, inputs: Sequence[Array], out: Array) -> bool:
    return not dtype.is_narrow and not any(np.may_share_memory(each, out) for each in inputs)


@lru_cache
def _leaves(count: int) -> tuple[range, ...]:
    return tuple(range(leaf, leaf + 1) for leaf in range(count))


class FoldPlan(NamedTuple):
    """A tree written down as steps (left, right, target) over registers: the inputs, scratch rows, and last the output.

    A step without a right side widens the left.
    """

    rows: int
    steps: tuple[tuple[int, int | None, int], ...]


_OUT = -1


@lru_cache
def plan_fold(lanes: tuple[range, ...], is_narrow: bool, may_use_out: bool) -> FoldPlan:  # noqa: FBT001 - it is cached by position
    """Return the steps that add up inputs, of which input i is the sum of ``lanes[i]``.

    If the steps ``may_use_out``, they keep partial sums in ``out``, because no input lies there.
    """
    steps: list[tuple[int, int | None, int]] = []
    rows, count, taken = 0, len(lanes), 0

    def emit(node: range, target: int, row: int) -> int:
        """Add up the lanes of ``node`` in ``target``, with scratch from ``row`` on, and return where the sum is."""
        nonlocal rows, taken
        rows = max(rows, row)
        if lanes[taken] == node:
            taken += 1
            if is_narrow:
                steps.append((taken - 1, None, target))
            return target if is_narrow else taken - 1
        left_half, right_half = halves(node)
        left = emit(left_half, target, row)
        right = emit(right_half, count + row, row + 1)
        steps.append((left, right, target))
        return target

    root = range(lanes[-1].stop)
    if may_use_out:
        emit(root, _OUT, 0)
    else:
        emit(root, count, 1)
        if not is_narrow:
            steps[-1] = (*steps[-1][:2], _OUT)
    return FoldPlan(rows, tuple(steps))


def _run_program(
    program: FoldPlan, op: ReduceOp, dtype: DType, inputs: Sequence[Array], scratch: Array, out: Array
) -> None:
    _run_steps(program, op, dtype, [*inputs, *scratch, out])
    if dtype.is_narrow:
        _finish(op, dtype, scratch[0], len(inputs), out)
    elif op.is_mean:
        np.true_divide(out, len(inputs), out)


def _run_steps(program: FoldPlan, op: ReduceOp, dtype: DType, registers: Sequence[Array]) -> None:
    for left, right, target in program.steps:
        if right is None:
            _widen(dtype, registers[left], registers[target])
        else:
            op.ufunc(registers[left], registers[right], out=registers[target])


def _finish(op: ReduceOp, dtype: DType, accumulated: Array, count: int, out: Array) -> None:
    if dtype.is_narrow:
        for chunk in slices(slice(0, len(out)), CHUNK):
            values = accumulated[chunk]
            _round(dtype, np.true_divide(values, count) if op.is_mean else values, out[chunk])
    elif op.is_mean:
        np.true_divide(accumulated, count, out)
    elif out is not accumulated:
        np.copyto(out, accumulated)


def _widen(dtype: DType, array: Array, out: Array) -> Array:
    if dtype is DType.BF16:
        widen_bf16(array, out)
    else:
        np.copyto(out, array)
    return out


def _round(dtype: DType, values: Array, out: Array) -> None:
    if dtype is DType.BF16:
        round_to_bf16(values, out)
    else:
        np.copyto(out, values)
