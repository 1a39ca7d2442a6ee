"""Changing the files of a checkpoint, with hashes that are right afterwards. It needs neither torch nor our reader."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MANIFEST = "manifest.json"

Json = Any  # what JSON can hold has no better type


class StoredTensor(NamedTuple):
    """A tensor as a safetensors file describes and stores it."""

    dtype: str
    shape: list[int]
    data: bytes


class RawTensors(NamedTuple):
    """The bytes of a safetensors file, whose header may be said to be longer or shorter than it is."""

    header: bytes
    data: bytes = b""
    length: int | None = None

    def write(self, file: Path) -> None:
        """Write the file."""
        length = len(self.header) if self.length is None else self.length
        file.write_bytes(length.to_bytes(8, "little") + self.header + self.data)


def repair_hashes(checkpoint: Path) -> None:
    """Write the sizes and hashes of the files into the manifest of a checkpoint, for the files that it lists."""
    manifest = json.loads((checkpoint / MANIFEST).read_bytes())
    for name in manifest["files"]:
        content = (checkpoint / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def rewrite_json(file: Path, change: Callable[[Json], Json]) -> None:
    """Change what a JSON file holds."""
    file.write_text(json.dumps(change(json.loads(file.read_bytes()))), encoding="utf-8")


def rewrite_tensors(file: Path, change: Callable[[dict[str, StoredTensor]], dict[str, StoredTensor]]) -> None:
    """Change the tensors of a file."""
    _write_tensors(file, change(read_tensors(file)))


def read_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a valid safetensors file."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return {
        name: StoredTensor(
            each["dtype"], each["shape"], content[start + each["data_offsets"][0] : start + each["data_offsets"][1]]
        )
        for name, each in json.loads(content[8:start]).items()
    }


def _write_tensors(file: Path, tensors: dict[str, StoredTensor]) -> None:
    """Write a safetensors file. Nothing is checked: the shapes need not fit the data."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    RawTensors(json.dumps(header).encode(), b"".join(each.data for each in tensors.values())).write(file)
