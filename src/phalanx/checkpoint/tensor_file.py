"""Files of tensors in the safetensors format: writing them, hashing them on the way, and reading them."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from phalanx.buffers import slices
from phalanx.plain_file import open_plain

TENSORS = ".safetensors"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RUN_BYTES = 2**22
_LONGEST_NAME = 1000
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 2**56  # their bytes still fit into the 64 bits in which torch counts


Pace = Callable[[], object]
"""Is called after each part of a file, and may take its time."""


def at_once() -> None:
    """Go on writing without a rest."""


class FileDigest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size and the hash of a file."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """A tensor of this shape whose elements are those of ``parts``, one after the other, all of one type."""

    shape: Sequence[int]
    parts: Sequence[torch.Tensor]


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor | JoinedTensor], pace: Pace = at_once) -> FileDigest:
    """Write a new file of tensors to the disk. Only one tensor at a time is copied to the CPU."""
    return write_file(path, encode_tensors(tensors), pace)


def write_file(path: Path, chunks: Iterable[bytes | memoryview], pace: Pace = at_once) -> FileDigest:
    """Write a new file to the disk."""
    sha256 = hashlib.sha256()
    with path.open("xb") as file:
        for chunk in chunks:
            for run in slices(slice(0, len(chunk)), _RUN_BYTES):
                sha256.update(chunk[run])
                file.write(chunk[run])
                pace()
        file.flush()
        os.fsync(file.fileno())
        return FileDigest(sha256.hexdigest(), file.tell())


def find_damage(path: Path, entry: FileDigest) -> str | None:
    """Return what is wrong with a file, or None if it has the size and the hash of ``entry``."""
    try:
        with open_plain(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != entry.size_bytes:
                return f"has {size_bytes} bytes instead of the {entry.size_bytes} in manifest.json"
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return "does not have the hash in manifest.json"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, mapped and not read. ValueError says what is wrong with the file.

    The library limits the length of the header, and checks that the tensors cover the file without gap or overlap.
    """
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is not a dictionary
                _check_tensor(name, file.get_slice(name))
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"is not a file of tensors: {error}") from error


def _check_tensor(name: str, found: Any) -> None:  # Any: the library's slices are untyped
    shape, dtype = found.get_shape(), found.get_dtype()
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"has a tensor with a name of {len(name):,} letters")
    if dtype not in _DTYPES.values():
        raise ValueError(f"has {name} of type {dtype}, which no checkpoint has")
    if len(shape) > _MOST_DIMENSIONS or math.prod(max(size, 1) for size in shape) > _MOST_ELEMENTS:
        raise ValueError(f"has {name} of a shape that cannot be: it has {len(shape)} dimensions")


def encode_tensors(tensors: Mapping[str, torch.Tensor | JoinedTensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file.

    The library's own writer needs contiguous copies of all tensors at once, and hides why a write failed.
    """
    joined = {
        name: each if isinstance(each, JoinedTensor) else JoinedTensor(each.shape, [each])
        for name, each in tensors.items()
    }
    names = sorted(joined, key=lambda name: (-joined[name].parts[0].element_size(), name))  # aligns all of them
    header, end_bytes = {}, 0
    for name in names:
        shape, parts = joined[name].shape, joined[name].parts
        start_bytes, end_bytes = end_bytes, end_bytes + sum(part.numel() * part.element_size() for part in parts)
        offsets = [start_bytes, end_bytes]
        header[name] = {"dtype": _DTYPES[parts[0].dtype], "shape": list(shape), "data_offsets": offsets}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        for part in joined[name].parts:
            flat = part.detach().cpu().contiguous().reshape(-1)
            yield memoryview(flat.view(torch.uint8).numpy())
