"""Saving checkpoints, finding them again, and loading them."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file

from phalanx.errors import ConfigError
from phalanx.train.checkpoint.draft import remove, write
from phalanx.train.checkpoint.manifest import FACTS, Manifest, check, damaged
from phalanx.train.checkpoint.shard_files import Tensors, find_misfit, list_shards, unite
from phalanx.train.checkpoint.tensor_file import TENSORS
from phalanx.train.rundir import RunDir

_NAME = re.compile(r"step-(\d{8,})")


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


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint to the disk; return its directory.

    All is written beside it, under a name that is no checkpoint's, and renamed at the end. If that fails, nothing of
    it stays. A whole checkpoint that has the same tensors at the same step stays as it is; any other is replaced.
    """
    return write(folder, checkpoint.step, checkpoint.files, checkpoint.facts)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, once every file is found to be as long and to have the hash that its manifest says.

    The tensors are on the CPU, and mapped from the files, which may be removed. Of a set that was written in shards
    it has the labels of all. One that is not whole is a ConfigError.
    """
    manifest, sets = read_files(path)
    files = {name: unite(shards) for name, shards in sets.items()}
    return Checkpoint(manifest.step, files, msgspec.json.decode((path / FACTS).read_bytes()))


def read_files(path: Path) -> tuple[Manifest, dict[str, dict[str, Tensors]]]:
    """The manifest and the tensors of a checkpoint that is whole, by set and then by file: a set may be in shards."""
    manifest = check(path)
    sets: dict[str, dict[str, Tensors]] = {}
    shards = {str(shard): shard.name for shard in list_shards(manifest.files)}
    for file in manifest.files:
        if file != FACTS:
            sets.setdefault(shards.get(file, file.removesuffix(TENSORS)), {})[file] = load_file(path / file)
    model = sets.get("model", {}).get("model" + TENSORS, {})
    for name in set(shards.values()):
        if misfit := find_misfit(sets[name], model):
            raise damaged(path, misfit)
    return manifest, sets


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
        whole = _find_whole(path for number, path in found.items() if number < wanted)
        if whole is None:
            raise ConfigError(f"{error}; no earlier one is whole: start again without --resume") from error
        offer = f"--resume {folder.parent} --from-step {_step_of(whole)}"
        raise ConfigError(f"{error}; {whole.name} is whole: go on from it with {offer}") from error


def list_checkpoints(path: Path) -> list[Path]:
    """The checkpoints that a path means, in the order of their steps: itself, or those of a run, or in a folder."""
    itself = path.resolve()
    if not itself.is_dir():
        raise ConfigError(f"there is no directory {path}: name a checkpoint, or a run that has some")
    if _NAME.fullmatch(itself.name):
        return [itself]
    run = RunDir(path)
    found = list(_find(run.checkpoints if run.config.is_file() else path).values())
    if not found:
        raise ConfigError(f"there is no checkpoint in {path}: name one, or a run that has some")
    return found


def prune(folder: Path, keep: int, best_step: int | None = None) -> None:
    """Remove all checkpoints but the last ``keep`` and the one of ``best_step``."""
    if keep < 1:
        raise ConfigError(f"at least 1 checkpoint must be kept, not {keep}")
    found = _find(folder)
    for step in sorted(found)[:-keep]:
        if step != best_step:
            remove(found[step])


def cut(folder: Path, step: int) -> None:
    """Remove the checkpoints after ``step``: a run that goes on from there will write them again."""
    for number, path in _find(folder).items():
        if number > step:
            remove(path)


def _find(folder: Path) -> dict[int, Path]:
    """All checkpoints by step, in order."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return dict(sorted((_step_of(path), path) for path in paths if _NAME.fullmatch(path.name) and path.is_dir()))


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _find_whole(paths: Iterable[Path]) -> Path | None:
    """The last of some paths, in order, at which there is a whole checkpoint."""
    for path in reversed(list(paths)):
        with suppress(ConfigError):
            read_files(path)
            return path
    return None
