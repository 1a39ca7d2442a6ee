"""Element types: what the bytes of a buffer hold, here and on the wire."""

from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from phalanx.buffers.split import CHUNK, slices
from phalanx.errors import ConfigError

Array: TypeAlias = npt.NDArray[Any]  # Any: a DType says at run time what the elements are


class DType(Enum):
    """The element types a buffer may have.

    numpy has no bf16: its bit patterns travel in uint16 arrays whose dtype is marked, as ``DType.BF16.numpy`` is. A
    plain array of uint16 is refused, because nobody can know whether it holds bit patterns or integers.
    """

    F64 = (1, "f64", np.float64)
    F32 = (2, "f32", np.float32)
    F16 = (3, "f16", np.float16)
    BF16 = (4, "bf16", np.dtype(np.uint16, metadata={"phalanx": "bf16"}))
    I64 = (5, "i64", np.int64)
    I32 = (6, "i32", np.int32)
    I8 = (7, "i8", np.int8)
    U8 = (8, "u8", np.uint8)
    BOOL = (9, "bool", np.bool_)

    # Plain attributes, not properties: reading one costs a tenth, and every fold reads some.
    code: int
    label: str
    numpy: np.dtype[np.generic]
    itemsize: int
    is_float: bool
    is_narrow: bool

    def __init__(self, code: int, label: str, numpy: "type[np.generic] | np.dtype[np.generic]") -> None:
        self.code = code
        self.label = label
        self.numpy = np.dtype(numpy)
        self.itemsize = self.numpy.itemsize
        self.is_narrow = label in ("f16", "bf16")
        self.is_float = self.is_narrow or self.numpy.kind == "f"

    @property
    def accumulator(self) -> "DType":
        """The type that sums are kept in: f32 for the narrow floats, else the type itself."""
        return DType.F32 if self.is_narrow else self

    @classmethod
    def from_code(cls, code: int) -> "DType":
        """Return the type with this wire code; ValueError if there is none."""
        for dtype in cls:
            if dtype.code == code:
                return dtype
        raise ValueError(f"no element type has the code {code}")

    @classmethod
    def of(cls, array: Array) -> "DType":
        """Return the type of an array's elements."""
        return _from_numpy(array.dtype)

    @classmethod
    def parse(cls, value: "DType | str | np.dtype[Any] | type") -> "DType":  # Any: as in Array
        """Return the type that an argument names: ``"bf16"``, ``np.float32``, ``array.dtype`` or a DType."""
        if isinstance(value, cls):
            return value
        if isinstance(value, np.dtype | type):
            return _from_numpy(np.dtype(value))
        for dtype in cls:
            if dtype.label == value:
                return dtype
        raise ConfigError(f"{value!r} is no element type: use one of {_LABELS}")


def widen_bf16(bits: Array, out: Array) -> None:
    """Write the f32 values of bf16 bit patterns into ``out``; exact."""
    target = out.view(np.uint32)
    for chunk in slices(slice(0, len(bits)), CHUNK):
        np.copyto(target[chunk], bits[chunk])
        np.left_shift(target[chunk], 16, target[chunk])


def round_to_bf16(values: Array, out: Array) -> None:
    """Write the nearest bf16 bit patterns of f32 values into ``out``; ties go to the even one, NaN stays NaN."""
    source = values.view(np.uint32)
    scratch = np.empty(min(CHUNK, len(values)), np.uint32)
    for chunk in slices(slice(0, len(values)), CHUNK):
        bits, rounded = source[chunk], scratch[: chunk.stop - chunk.start]
        np.right_shift(bits, 16, rounded)
        np.bitwise_and(rounded, 1, rounded)
        np.add(rounded, 0x7FFF, rounded)
        np.add(rounded, bits, rounded)
        np.right_shift(rounded, 16, rounded)
        np.copyto(out[chunk], rounded, casting="unsafe")  # 16 bits are left, so nothing is lost
        nan = np.isnan(values[chunk])
        if nan.any():  # rounding may have carried the fraction of a NaN into Inf or zero: set its quiet bit instead
            out[chunk][nan] = (bits[nan] >> 16) | 0x40


_MARK = DType.BF16.numpy.metadata
_BY_NUMPY = {dtype.numpy: dtype for dtype in DType}
_LABELS = ", ".join(dtype.label for dtype in DType)
_INSTEAD = {
    "i": "convert to i32",
    "u": "convert to i64",
    "f": "convert to f64",
    "c": "view it as its real and imaginary parts",
}


def _from_numpy(dtype: np.dtype[Any]) -> DType:  # Any: as in Array
    found = _BY_NUMPY.get(dtype)
    if found is DType.BF16 and dtype.metadata != _MARK:  # to numpy, a marked type is equal to the plain one
        raise ConfigError(
            "elements of type uint16 could be integers or bf16: convert integers to i32, and pass bit patterns of bf16 "
            "as array.view(phalanx.DType.BF16.numpy)"
        )
    if found is not None:
        return found
    if dtype.name == "bfloat16":  # ml_dtypes adds this type to numpy
        return DType.BF16
    if not dtype.isnative:
        raise ConfigError(
            f"{dtype} is not in this machine's byte order: pass array.astype(array.dtype.newbyteorder('='))"
        )
    instead = _INSTEAD.get(dtype.kind, "encode it as u8")
    raise ConfigError(f"elements of type {dtype} cannot be exchanged: {instead} (there are {_LABELS})")


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of a contiguous array."""
    return array.data.cast("B") if array.size else memoryview(b"")
