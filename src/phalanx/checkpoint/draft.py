"""A checkpoint that is being written, under a temporary name until it is complete."""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch

from phalanx.checkpoint.contents import list_tensors
from phalanx.checkpoint.manifest import FACTS, FORMAT, MANIFEST, Manifest, check
from phalanx.checkpoint.reader import read_sets
from phalanx.checkpoint.tensor_file import TENSORS, FileDigest, JoinedTensor, Pace, at_once, write_file, write_tensors
from phalanx.errors import ConfigError

Sources = Mapping[str, torch.Tensor | JoinedTensor]
Facts = Mapping[str, Any]  # Any: what JSON can hold has no better type


Entering = Callable[[], AbstractContextManager[bool]]
"""Keeps others from changing a folder during a block, and yields whether this process may change it."""


def always() -> AbstractContextManager[bool]:
    """Let this process change a folder: nobody else does."""
    return nullcontext(True)


def write(
    folder: Path,
    step: int,
    files: Mapping[str, Sources],
    facts: Facts,
    entering: Entering = always,
    pace: Pace = at_once,
) -> Path:
    """Write a checkpoint to the disk and return its directory. If that fails, nothing of it stays."""
    draft = Draft(folder, step, draw_number())
    may_write = True
    try:
        with entering() as may_write:
            if may_write:
                draft.begin()
        entries = draft.write(files, facts, pace) if may_write else {}
        with entering() as may_write:
            if may_write:
                draft.finish(entries)
    except OSError as error:
        with entering() as may_write:  # another worker may have taken over, and removed the draft
            if may_write:
                raise draft.refusal(error) from error
    finally:
        draft.discard()
    return draft.target


def draw_number() -> int:
    """Return a number for a draft that no other draft has."""
    return secrets.randbits(48)  # exact as a float


class Draft:
    """An unfinished checkpoint in the directory ``path``, which ``finish`` renames to ``target``.

    All who write it know its ``number``. A writer that was stopped and given up has another one, so that it cannot take
    what its successor is writing for its own.
    """

    def __init__(self, folder: Path, step: int, number: int) -> None:
        self.folder = folder
        self.step = step
        self.target = folder / f"step-{step:08}"
        self.path = folder / f".{self.target.name}.{number:x}.new"

    def begin(self) -> None:
        """Make the directory, and remove what killed processes have left behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)  # its writer may still be at it
        self.path.mkdir()

    def write(self, files: Mapping[str, Sources], facts: Facts, pace: Pace = at_once) -> dict[str, FileDigest]:
        """Write the facts and a file for each set of tensors, and return their digests for the manifest."""
        text = msgspec.json.format(msgspec.json.encode(facts))
        entries = {FACTS: write_file(self.path / FACTS, [text])}
        for name, tensors in files.items():
            entries[name + TENSORS] = write_tensors(self.path / (name + TENSORS), tensors, pace)
        return entries

    def finish(self, entries: dict[str, FileDigest]) -> None:
        """Write the manifest and become the checkpoint, unless a complete one with the same tensors exists."""
        tensors = list_tensors(read_sets(self.path, entries))  # read back, because other ranks wrote some of them
        manifest = Manifest(format=FORMAT, step=self.step, files=entries, tensors=tensors)
        write_file(self.path / MANIFEST, [msgspec.json.format(msgspec.json.encode(manifest))])
        _sync(self.path)
        if _has_tensors(self.target, manifest):
            return
        if self.target.exists():
            remove(self.target)
        self.path.rename(self.target)
        _sync(self.folder)

    def discard(self) -> None:
        """Remove what has not become a checkpoint."""
        shutil.rmtree(self.path, ignore_errors=True)

    def refusal(self, error: OSError, rank: int | None = None) -> ConfigError:
        """Return the error that says why the checkpoint cannot be written, and on which rank if several write."""
        who = "" if rank is None else f"rank {rank} "
        words = f"{who}cannot write checkpoint {self.target}: {error.strerror}; earlier checkpoints are unchanged"
        return ConfigError(f"{words}: free some space, or make {self.folder} writable")


def remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that half of it is never taken for a checkpoint."""
    aside = path.with_name(f".{path.name}.old")
    try:
        path.rename(aside)
        shutil.rmtree(aside)
    except OSError as error:
        raise ConfigError(f"cannot remove checkpoint {path}: {error.strerror}; remove it by hand") from error


def _has_tensors(path: Path, manifest: Manifest) -> bool:
    """Return whether there is a complete checkpoint with the tensors of that manifest."""
    try:
        found = check(path)
    except ConfigError:
        return False
    is_same = {**found.files, FACTS: None} == {**manifest.files, FACTS: None}
    return is_same and found.tensors == manifest.tensors


def _sync(folder: Path) -> None:
    """Write the names in a folder to the disk, so that they survive a crash of the machine."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
