"""Saving checkpoints, finding them again, and loading them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from phalanx.checkpoint.draft import Entering, always, remove, write
from phalanx.checkpoint.reader import FindFault, read
from phalanx.checkpoint.shard_files import unite
from phalanx.checkpoint.tensor_file import Pace, at_once
from phalanx.errors import ConfigError

_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,17})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to continue after ``step`` steps.

    ``files`` are named sets of tensors, such as "model" and "optimizer". ``facts`` is anything that JSON can hold.
    """

    step: int
    files: Mapping[str, Mapping[str, torch.Tensor]]
    facts: Mapping[str, Any]  # Any: what JSON can hold has no better type

    def __post_init__(self) -> None:
        if msgspec.json.decode(msgspec.json.encode(self.facts)) != self.facts:
            raise ConfigError(f"the facts of a checkpoint must be equal after a round trip through JSON: {self.facts}")


def save(folder: Path, checkpoint: Checkpoint, entering: Entering = always, pace: Pace = at_once) -> Path:
    """Write the checkpoint to the disk; return its directory.

    The files are written under a temporary name beside it, which is renamed at the end. If that fails, nothing stays.
    A complete checkpoint of the same step with the same tensors is kept as it is; any other is replaced. All that
    others could notice happens within ``entering()``. If that yields False, nothing is saved. ``pace`` is called after
    every few megabytes.
    """
    return write(folder, checkpoint.step, checkpoint.files, checkpoint.facts, entering, pace)


def is_saved(folder: Path, step: int) -> bool:
    """Return whether there is a checkpoint of a step."""
    return step in find_checkpoints(folder)


def load(path: Path, find_fault: FindFault = lambda *_: None) -> Checkpoint:
    """Read a checkpoint after checking the size and the hash of every file. A damaged checkpoint is a ConfigError.

    The tensors are on the CPU and mapped from the files, which may be removed meanwhile. A set that was written in
    shards comes back as one set with the labels of all shards.
    """
    manifest, facts, sets = read(path, find_fault)
    return Checkpoint(manifest.step, {name: unite(shards) for name, shards in sets.items()}, facts)


def latest_step(folder: Path | str) -> int:
    """Return the step of the latest checkpoint in a folder, or 0 if there is none."""
    return max(find_checkpoints(Path(folder)), default=0)


def prune(folder: Path, keep: int, best_step: int | None = None) -> None:
    """Remove all checkpoints except the last ``keep`` and the one of ``best_step``."""
    if keep < 1:
        raise ConfigError(f"at least 1 checkpoint must be kept, not {keep}")
    found = find_checkpoints(folder)
    for step in sorted(found)[:-keep]:
        if step != best_step:
            remove(found[step])


def cut(folder: Path, step: int) -> None:
    """Remove the checkpoints after ``step``: a run that resumes there writes them again."""
    for number, path in find_checkpoints(folder).items():
        if number > step:
            remove(path)


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """Return all checkpoints in a folder by step, in order."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return dict(sorted((step_of(path), path) for path in paths if is_checkpoint(path)))


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is a directory with the name of a checkpoint."""
    return bool(_NAME.fullmatch(path.name)) and path.is_dir()
