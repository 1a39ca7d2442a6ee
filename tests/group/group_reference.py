"""Data that every rank can make for every other, and what numpy says of it."""

import hashlib

import numpy as np

from phalanx.buffers import DType, ReduceOp, round_to_bf16, widen_bf16

REDUCTIONS = [
    (op, dtype) for dtype in DType for op in ReduceOp if not (op.is_bitwise if dtype.is_float else op.is_mean)
]


def data(dtype, length, rank):
    """What ``rank`` has: numbers that differ everywhere, and whose products stay in range."""
    random = np.random.default_rng([length, rank, dtype.code])
    if dtype is DType.BOOL:
        return random.random(length) < 0.6
    if not dtype.is_float:
        return random.integers(0 if dtype is DType.U8 else -5, 5, length).astype(dtype.numpy)
    values = random.uniform(0.5, 1.5, length) * random.choice([-1.0, 1.0], length)
    if dtype is DType.BF16:
        bits = np.empty(length, dtype.numpy)
        round_to_bf16(values.astype(np.float32), bits)
        return bits
    return values.astype(dtype.numpy)


def values(dtype, array):
    """The numbers in an array, as f64 where they are floats."""
    if dtype is DType.BF16:
        wide = np.empty(array.size, np.float32)
        widen_bf16(array.reshape(-1), wide)
        return wide.astype(np.float64).reshape(array.shape)
    return array.astype(np.float64) if dtype.is_float else array


def reduced(op, dtype, arrays):
    """What numpy makes of all ranks' arrays."""
    stacked = np.stack([values(dtype, array) for array in arrays])
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        total = np.add.reduce(stacked, axis=0, dtype=stacked.dtype)
        return total / len(arrays) if op is ReduceOp.MEAN else total
    return op.ufunc.reduce(stacked, axis=0, dtype=stacked.dtype)


def assert_reduced(op, dtype, result, arrays):
    """The result is what numpy says: exactly for integers, within the rounding of the type for floats."""
    expected = reduced(op, dtype, arrays)
    found = values(dtype, result)
    if not dtype.is_float:
        np.testing.assert_array_equal(found, expected)
        return
    unit = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}[dtype]
    scale = np.add.reduce(np.abs(np.stack([values(dtype, array) for array in arrays])), axis=0)
    if op is ReduceOp.PRODUCT:
        scale = np.abs(expected)
    rounding = 1 if dtype.is_narrow else len(arrays)  # narrow types add up in f32 and round once
    slack = rounding * unit * np.maximum(np.abs(expected), scale / len(arrays)) + 2.0**-20 * scale * dtype.is_narrow
    assert np.all(np.abs(found - expected) <= slack)


def digest(*arrays):
    """A word that is equal only for equal bits."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
