"""Checkpoints: safetensors files and a manifest of their hashes, so written that there is always a whole one."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file

from phalanx.errors import ConfigError

_FORMAT = 1
_MANIFEST = "manifest.json"
_FACTS = "facts.json"
_TENSORS = ".safetensors"
_NAME = re.compile(r"step-(\d{8,})")
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a run needs to go on after ``step`` steps.

    ``files`` are named sets of tensors, such as "model" and "optimizer". ``facts`` are whatever JSON can hold.
    """

    step: int
    files: Mapping[str, Mapping[str, torch.Tensor]]
    facts: Mapping[str, Any]  # Any: what JSON can hold has no better type

    def __post_init__(self) -> None:
        if msgspec.json.decode(msgspec.json.encode(self.facts)) != self.facts:
            raise ConfigError(f"facts of a checkpoint must come back from JSON as they were, unlike {self.facts}")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    size_bytes: int


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    step: int
    files: dict[str, _Entry]

    def __post_init__(self) -> None:
        if self.format != _FORMAT or _FACTS not in self.files:
            raise ValueError("not a manifest of ours")


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint to the disk; return its directory.

    All is written beside it, under a name that is no checkpoint's, and renamed at the end. If that fails, nothing of
    it stays. A whole checkpoint that has the same tensors at the same step stays as it is; any other is replaced.
    """
    target = folder / f"step-{checkpoint.step:08}"
    beside = folder / f".{target.name}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        written = _write(beside, checkpoint)
        if not _has_tensors(target, written):
            if target.exists():
                _remove(target)
            beside.rename(target)
            _sync(folder)
    except OSError as error:
        words = f"cannot write checkpoint {target}: {error.strerror}; earlier checkpoints are as they were"
        raise ConfigError(f"{words}: make room, or see that {folder} can be written to") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, once every file is found to be as long and to have the hash that its manifest says.

    The tensors are on the CPU, and mapped from the files, which may be removed. One that is not whole is a ConfigError.
    """
    manifest = _check(path)
    tensors = {name.removesuffix(_TENSORS): load_file(path / name) for name in manifest.files if name != _FACTS}
    return Checkpoint(manifest.step, tensors, msgspec.json.decode((path / _FACTS).read_bytes()))


def load_for_resume(folder: Path, step: int | None = None) -> Checkpoint:
    """Read the checkpoint of that step, or the latest.

    If it is not whole, the ConfigError names an earlier one that is: people decide whether to lose the steps between.
    """
    found = _find(folder)
    if not found:
        raise ConfigError(f"there is no checkpoint in {folder} to go on from: start again without --resume")
    wanted = max(found) if step is None else step
    if wanted not in found:
        steps = ", ".join(map(str, found))
        raise ConfigError(f"there is no checkpoint of step {wanted} in {folder}: pass --from-step with one of {steps}")
    try:
        return load(found[wanted])
    except ConfigError as error:
        whole, _ = _search(path for number, path in found.items() if number < wanted)
        if whole is None:
            raise ConfigError(f"{error}; no earlier one is whole: start again without --resume") from error
        offer = f"--resume {folder.parent} --from-step {_step_of(whole)}"
        raise ConfigError(f"{error}; {whole.name} is whole: go on from it with {offer}") from error


def prune(folder: Path, keep: int, best_step: int | None = None) -> None:
    """Remove all checkpoints but the last ``keep`` and the one of ``best_step``."""
    if keep < 1:
        raise ConfigError(f"at least 1 checkpoint must be kept, not {keep}")
    found = _find(folder)
    for step in sorted(found)[:-keep]:
        if step != best_step:
            _remove(found[step])


def cut(folder: Path, step: int) -> None:
    """Remove the checkpoints after ``step``: a run that goes on from there will write them again."""
    for number, path in _find(folder).items():
        if number > step:
            _remove(path)


# Finding


def _find(folder: Path) -> dict[int, Path]:
    """All checkpoints by step, in order."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return {_step_of(path): path for path in sorted(paths) if _NAME.fullmatch(path.name) and path.is_dir()}


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _search(paths: Iterable[Path]) -> tuple[Path | None, list[str]]:
    """The last whole one of paths in order, and what is wrong with those after it."""
    refused: list[str] = []
    for path in reversed(list(paths)):
        try:
            _check(path)
        except ConfigError as error:
            refused.append(str(error))
        else:
            return path, refused
    return None, refused


def _check(path: Path) -> _Manifest:
    """The manifest of a checkpoint that is whole; else a ConfigError that says which file is not as it should be."""
    manifest = _read_manifest(path)
    for name, entry in manifest.files.items():
        if damage := _find_damage(path / name, entry):
            raise ConfigError(f"checkpoint {path} is damaged: {name} {damage}")
    return manifest


def _read_manifest(path: Path) -> _Manifest:
    words = f"checkpoint {path} is damaged: {_MANIFEST}"
    try:
        manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=_Manifest)
    except OSError as error:
        raise ConfigError(f"{words} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{words} is altered, cut short or of another version of Phalanx") from error
    if path.name != f"step-{manifest.step:08}":
        raise ConfigError(f"{words} is that of step {manifest.step}")
    return manifest


def _find_damage(path: Path, entry: _Entry) -> str | None:
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != entry.size_bytes:
                return f"has {size_bytes} bytes and not the {entry.size_bytes} that its {_MANIFEST} says"
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return f"has other bytes than its {_MANIFEST} says"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _has_tensors(path: Path, manifest: _Manifest) -> bool:
    """Whether there is a whole checkpoint with the tensors of that manifest."""
    try:
        files = _check(path).files
    except ConfigError:
        return False
    return {**files, _FACTS: None} == {**manifest.files, _FACTS: None}


# Writing


def _write(path: Path, checkpoint: Checkpoint) -> _Manifest:
    path.mkdir()
    facts = msgspec.json.format(msgspec.json.encode(checkpoint.facts))
    entries = {_FACTS: _write_file(path / _FACTS, [facts])}
    for name, tensors in checkpoint.files.items():
        entries[name + _TENSORS] = _write_file(path / (name + _TENSORS), _encode(tensors))
    manifest = _Manifest(_FORMAT, checkpoint.step, entries)
    _write_file(path / _MANIFEST, [msgspec.json.format(msgspec.json.encode(manifest))])
    _sync(path)
    return manifest


def _write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> _Entry:
    sha256 = hashlib.sha256()
    with path.open("xb") as file:
        for piece in pieces:
            sha256.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return _Entry(sha256.hexdigest(), file.tell())


def _encode(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, of which one tensor at a time is copied to the CPU.

    The library's own writer needs contiguous copies of all at once, and hides why the system refused a write.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so all are aligned
    header, end_bytes = {}, 0
    for name in names:
        tensor = tensors[name]
        start_bytes, end_bytes = end_bytes, end_bytes + tensor.numel() * tensor.element_size()
        offsets = [start_bytes, end_bytes]
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        yield memoryview(flat.view(torch.uint8).numpy())


def _remove(path: Path) -> None:
    """Remove a checkpoint so that no half of it is ever taken for one."""
    aside = path.with_name(f".{path.name}.old")
    try:
        path.rename(aside)
        shutil.rmtree(aside)
    except OSError as error:
        raise ConfigError(f"cannot remove checkpoint {path}: {error.strerror}; remove it by hand") from error


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed has left."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path)


def _sync(folder: Path) -> None:
    """See that the names in a folder outlive a crash of the machine."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
