"""People's own values as bytes: numbers, texts, lists, dicts, dataclasses and arrays, in msgpack.

Reading bytes runs no code but that of dataclasses that the reader has named.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from phalanx.errors import ConfigError

Find = Callable[[str], type | None]
"""Returns the dataclass with a name, as ``name_class`` makes it, or None if the reader knows none."""

_ARRAY, _TUPLE, _DATACLASS, _NUMBER = 1, 2, 3, 4  # our extensions of msgpack
_DEEPEST = 50
_LONGEST_NAME = 200
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 2**56  # their bytes still fit into the 64 bits in which torch counts
_INTEGERS = range(-(2**63), 2**64)  # those of msgpack
_WORDS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_NUMPY = {name: np.dtype(name) for name in _WORDS.split()}
_TORCH = {**_NUMPY, "bfloat16": np.dtype(np.uint16)}  # what has as many bytes in numpy
_KEPT = "None, bool, int, float, str, bytes, lists, tuples, dicts with words or integers as keys, and arrays"


class PackedArray(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array of numpy or a tensor of torch: type, shape and elements."""

    is_tensor: bool
    dtype: str
    shape: tuple[int, ...]
    elements: bytes


class PackedDataclass(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A dataclass: its name and its fields."""

    name: str
    fields: dict[str, Any]  # Any: checked as everything else


def encode_value(value: object, name: str, *, has_dataclasses: bool = True) -> bytes:
    """Return a value as bytes. What cannot be kept is a ConfigError that says where in ``name`` it is."""
    for where, fault in _find_faults(value, name, 0, has_dataclasses=has_dataclasses):
        kept = f"dataclasses, {_KEPT}" if has_dataclasses else _KEPT
        raise ConfigError(f"{where} {fault}: keep {kept} of numpy or torch")
    try:
        return msgspec.msgpack.encode(_pack(value))
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} has a text that is no Unicode: {error}") from error


def decode_value(data: bytes | memoryview, find: Find = lambda _: None) -> Any:  # Any: whatever was encoded
    """Return the value that ``encode_value`` was given. Tensors are on the CPU.

    Other bytes are a ValueError, and a dataclass that ``find`` does not know is a ConfigError.
    """
    try:
        value = msgspec.msgpack.decode(data, ext_hook=_Unpacking(find).unpack)
        fault = _first_fault(value, 0)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if fault:
        raise ValueError(fault)
    return value


def name_class(kind: type) -> str:
    """Return the name of a dataclass on the wire."""
    return f"{kind.__module__}.{kind.__qualname__}"


def find_dataclasses(value: object) -> dict[str, type]:
    """Return the dataclasses of a value and of all values in it, by name."""
    found: dict[str, type] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if _is_dataclass(each):
            found[name_class(type(each))] = type(each)
            waiting += _fields_of(each).values()
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
    return found


def _first_fault(value: object, depth: int) -> str | None:
    """Return what is wrong with a value that was read, in which dataclasses have been checked already."""
    return next((f"{where} {fault}" for where, fault in _find_faults(value, "it", depth, is_checked=True)), None)


def _find_faults(
    value: object, where: str, depth: int, *, has_dataclasses: bool = True, is_checked: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield where there is something that cannot be kept, and what it is, but not in dataclasses if ``is_checked``."""
    inner: list[tuple[str, object]] = []
    if depth > _DEEPEST:
        yield where, f"is more than {_DEEPEST} levels deep"
    elif type(value) is dict:
        for key in value:
            if type(key) is not str and (type(key) is not int or key not in _INTEGERS):
                yield where, f"has the key {key!r}, which is no word"
        inner = [(f"{where}[{key!r}]", each) for key, each in value.items()]
    elif type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        inner = [(f"{where}[{number}]", each) for number, each in enumerate(value)]
    elif has_dataclasses and _is_dataclass(value):
        inner = [] if is_checked else [(f"{where}.{name}", each) for name, each in _fields_of(value).items()]
    elif fault := _find_fault(value):
        yield where, fault
    for place, each in inner:
        yield from _find_faults(each, place, depth + 1, has_dataclasses=has_dataclasses, is_checked=is_checked)


def _find_fault(value: object) -> str | None:
    """Return why a value without values of its own cannot be kept, or None."""
    if _is_tensor(value):
        tensor: Any = value  # Any: this layer knows nothing of torch
        is_known = str(tensor.layout) == "torch.strided" and _name_dtype(tensor) in _TORCH
        return None if is_known else f"is a tensor of {tensor.layout} and {tensor.dtype}"
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return None if _name_dtype(value) in _NUMPY else f"is an array of type {value.dtype}"
    if type(value) is int and value not in _INTEGERS:
        return "is an integer of more than 64 bits"
    is_plain = value is None or type(value) in (bool, int, float, str, bytes)
    return None if is_plain else f"is of type {type(value).__name__}"


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: Any) -> dict[str, object]:  # Any: a dataclass
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


def _is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")  # Any: who has made a tensor has imported torch
    return torch is not None and isinstance(value, torch.Tensor)


def _name_dtype(array: Any) -> str:  # Any: of numpy or torch
    return str(array.dtype).removeprefix("torch.")


def _pack(value: Any) -> object:  # Any: as has been checked
    """Return a value that msgpack has, with our extensions."""
    if type(value) is dict:
        return {key: _pack(each) for key, each in value.items()}
    if type(value) is list:
        return [_pack(each) for each in value]
    if type(value) is tuple:
        return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode([_pack(each) for each in value]))
    if _is_dataclass(value):
        fields = {name: _pack(each) for name, each in _fields_of(value).items()}
        packed = PackedDataclass(name_class(type(value)), fields)
        return msgspec.msgpack.Ext(_DATACLASS, msgspec.msgpack.encode(packed))
    if _is_tensor(value) or isinstance(value, np.ndarray | np.generic):
        return msgspec.msgpack.Ext(
            _NUMBER if isinstance(value, np.generic) else _ARRAY, msgspec.msgpack.encode(_pack_array(value))
        )
    return value


def _pack_array(value: Any) -> PackedArray:  # Any: of numpy or torch
    if is_tensor := _is_tensor(value):
        torch: Any = sys.modules["torch"]  # Any: as above
        row = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)  # numpy's strides may be 0
        elements = row.view(torch.uint8).numpy().tobytes()
    else:
        elements = value.tobytes()
    return PackedArray(is_tensor, _name_dtype(value), tuple(value.shape), elements)


class _Unpacking:
    """Reads our extensions of one message."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._depth = 0

    def unpack(self, code: int, data: memoryview) -> Any:  # Any: whatever was encoded
        if code in (_ARRAY, _NUMBER):
            array = _unpack_array(msgspec.msgpack.decode(data, type=PackedArray))
            if code == _NUMBER and (not isinstance(array, np.ndarray) or array.shape):
                raise ValueError("it has a number that is an array")
            return array[()] if code == _NUMBER else array
        if code not in (_TUPLE, _DATACLASS):
            raise ValueError(f"it has an extension {code}")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"it is more than {_DEEPEST} levels deep")
        if code == _TUPLE:
            made: object = tuple(msgspec.msgpack.decode(data, type=list[Any], ext_hook=self.unpack))
        else:
            made = self._make(msgspec.msgpack.decode(data, type=PackedDataclass, ext_hook=self.unpack))
        self._depth -= 1
        return made

    def _make(self, packed: PackedDataclass) -> object:
        kind = self._find(packed.name)
        if kind is None or not dataclasses.is_dataclass(kind):
            name = packed.name[:_LONGEST_NAME]
            raise ConfigError(f"the dataclass {name!r} has come, which is not known here: pass it in types")
        if fault := _first_fault(packed.fields, self._depth):
            raise ValueError(fault)
        if {field.name for field in dataclasses.fields(kind) if field.init} != packed.fields.keys():
            raise ValueError(f"it has a {packed.name} with other fields than here")
        try:
            return kind(**packed.fields)
        except Exception as error:  # whatever the class thinks of its fields
            raise ConfigError(f"a {packed.name} that has come is refused here: {error}") from error


def _unpack_array(packed: PackedArray) -> Any:  # Any: of numpy or torch
    shape, types = packed.shape, _TORCH if packed.is_tensor else _NUMPY
    if packed.dtype not in types:
        raise ValueError(f"it has an array of type {packed.dtype}")
    is_likely = len(shape) <= _MOST_DIMENSIONS and math.prod(max(each, 1) for each in shape) <= _MOST_ELEMENTS
    if not is_likely or min(shape, default=0) < 0:
        raise ValueError(f"it has an array of shape {shape}")
    if math.prod(shape) * types[packed.dtype].itemsize != len(packed.elements):
        raise ValueError(f"it has an array of shape {shape} with {len(packed.elements)} bytes")
    row = np.frombuffer(bytearray(packed.elements), np.uint8)  # a copy, so that it can be written to
    if not packed.is_tensor:
        return row.view(_NUMPY[packed.dtype]).reshape(shape)
    torch: Any = sys.modules.get("torch")  # Any: as above
    if torch is None:
        raise ConfigError("a tensor has come, and torch is not imported here: import torch first")
    return torch.from_numpy(row).view(getattr(torch, packed.dtype)).reshape(shape)
