"""Files of tensors, in the format of safetensors: written once, hashed on the way."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

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


class FileDigest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file must be."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """A tensor of this shape, whose elements lie in several others of one type, one after the other."""

    shape: Sequence[int]
    parts: Sequence[torch.Tensor]


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor | JoinedTensor]) -> FileDigest:
    """Write a new file of tensors to the disk, copying one at a time to the CPU."""
    return write_file(path, _encode(tensors))


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileDigest:
    """Write a new file to the disk."""
    sha256 = hashlib.sha256()
    with path.open("xb") as file:
        for chunk in chunks:
            sha256.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        return FileDigest(sha256.hexdigest(), file.tell())


def find_damage(path: Path, entry: FileDigest) -> str | None:
    """What is wrong with a file, if it is not what its entry says."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != entry.size_bytes:
                return f"has {size_bytes} bytes and not the {entry.size_bytes} that its manifest.json says"
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return "has other bytes than its manifest.json says"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _encode(tensors: Mapping[str, torch.Tensor | JoinedTensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file.

    The library's own writer needs contiguous copies of all at once, and hides why the system refused a write.
    """
    joined = {
        name: each if isinstance(each, JoinedTensor) else JoinedTensor(each.shape, [each])
        for name, each in tensors.items()
    }
    names = sorted(joined, key=lambda name: (-joined[name].parts[0].element_size(), name))  # so all are aligned
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
