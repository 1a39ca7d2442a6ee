"""A user's own small state as bytes: plain values and arrays, in msgpack. Reading bytes runs no code."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from phalanx.errors import ConfigError

_ARRAY = 1  # our one extension of msgpack
_DEEPEST = 50
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 2**56  # their bytes still fit into the 64 bits in which torch counts
_INTEGERS = range(-(2**63), 2**64)  # those of msgpack
_WORDS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_NUMPY = {name: np.dtype(name) for name in _WORDS.split()}
_TORCH = {name: getattr(torch, name) for name in [*_WORDS.split(), "bfloat16"]}


class PackedArray(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array of numpy or a tensor of torch: type, shape and elements."""

    is_tensor: bool
    dtype: str
    shape: tuple[int, ...]
    elements: bytes


def encode_extra(extra: Mapping[str, Any]) -> bytes:  # Any: checked here
    """Return a user's state as bytes. A value that cannot be kept is a ConfigError that names its key."""
    for where, fault in _find_faults(extra, "engine.extra", 0):
        raise ConfigError(
            f"{where} {fault}: keep None, bool, int, float, str, bytes, lists, dicts with words as keys, and arrays of "
            "numpy or torch"
        )
    try:
        return msgspec.msgpack.encode(extra, enc_hook=_pack)
    except UnicodeEncodeError as error:
        raise ConfigError(f"engine.extra has a text that is no Unicode: {error}") from error


def decode_extra(data: bytes) -> dict[str, Any]:  # Any: as above
    """Return the state that ``encode_extra`` was given. Tensors are on the CPU. Other bytes are a ConfigError."""
    try:
        extra = msgspec.msgpack.decode(data, ext_hook=_unpack)
        fault = next((f"{where} {fault}" for where, fault in _find_faults(extra, "it", 0)), None)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        fault = str(error)
    if fault:
        raise ConfigError(f"this is no state that engine.extra had: {fault}")
    found: dict[str, Any] = extra
    return found


def _find_faults(value: object, where: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield where there is something that cannot be kept, and what it is."""
    if depth == 0 and type(value) is not dict:
        yield where, f"is of type {type(value).__name__}, and must be a dict"
    elif depth > _DEEPEST:
        yield where, f"is more than {_DEEPEST} levels deep"
    elif type(value) is dict:
        for key, each in value.items():
            if type(key) is not str:
                yield where, f"has the key {key!r}, which is no word"
            yield from _find_faults(each, f"{where}[{key!r}]", depth + 1)
    elif type(value) is list:
        for number, each in enumerate(value):
            yield from _find_faults(each, f"{where}[{number}]", depth + 1)
    elif fault := _find_fault(value):
        yield where, fault


def _find_fault(value: object) -> str | None:
    """Return why a value without values of its own cannot be kept, or None."""
    if isinstance(value, torch.Tensor):
        is_known = value.layout is torch.strided and _name_dtype(value) in _TORCH
        return None if is_known else f"is a tensor of {value.layout} and {value.dtype}"
    if type(value) is np.ndarray:
        return None if _name_dtype(value) in _NUMPY else f"is an array of type {value.dtype}"
    if type(value) is int and value not in _INTEGERS:
        return "is an integer of more than 64 bits"
    is_plain = value is None or type(value) in (bool, int, float, str, bytes)
    return None if is_plain else f"is of type {type(value).__name__}"


def _name_dtype(array: Any) -> str:  # Any: of numpy or torch
    return str(array.dtype).removeprefix("torch.")


def _pack(value: Any) -> msgspec.msgpack.Ext:  # Any: of numpy or torch, as has been checked
    if is_tensor := isinstance(value, torch.Tensor):
        row = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)  # numpy's strides may be 0
        elements = row.view(torch.uint8).numpy().tobytes()
    else:
        elements = value.tobytes()
    packed = PackedArray(is_tensor, _name_dtype(value), tuple(value.shape), elements)
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(packed))


def _unpack(code: int, data: memoryview) -> Any:  # Any: of numpy or torch
    if code != _ARRAY:
        raise ValueError(f"it has an extension {code}")
    packed = msgspec.msgpack.decode(data, type=PackedArray)
    shape, types = packed.shape, _TORCH if packed.is_tensor else _NUMPY
    if packed.dtype not in types:
        raise ValueError(f"it has an array of type {packed.dtype}")
    is_likely = len(shape) <= _MOST_DIMENSIONS and math.prod(max(each, 1) for each in shape) <= _MOST_ELEMENTS
    if not is_likely or min(shape, default=0) < 0:
        raise ValueError(f"it has an array of shape {shape}")
    if math.prod(shape) * types[packed.dtype].itemsize != len(packed.elements):
        raise ValueError(f"it has an array of shape {shape} with {len(packed.elements)} bytes")
    row = np.frombuffer(bytearray(packed.elements), np.uint8)  # a copy, so that it can be written to
    if packed.is_tensor:
        return torch.from_numpy(row).view(_TORCH[packed.dtype]).reshape(shape)
    return row.view(_NUMPY[packed.dtype]).reshape(shape)
