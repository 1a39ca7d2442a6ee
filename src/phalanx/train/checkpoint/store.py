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
    """Everything a run needs to continue after ``step`` steps.

    ``files`` are named sets of tensors, such as "model" and "optimizer". ``facts`` is anything that JSON can hold.
    """

    step: int
    files: Mapping[str, Mapping[str, torch.Tensor]]
    facts: Mapping[str, Any]  # Any: what JSON can hold has no better type

    def __post_init__(self) -> None:
        if msgspec.json.decode(msgspec.json.encode(self.facts)) != self.facts:
            raise ConfigError(f"the facts of a checkpoint must be equal after a round trip through JSON: {self.facts}")


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint to the disk; return its directory.

    The files are written under a temporary name beside it, which is renamed at the end. If that fails, nothing stays.
    A complete checkpoint of the same step with the same tensors is kept as it is; any other is replaced.
    """
    return write(folder, checkpoint.step, checkpoint.files, checkpoint.facts)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint after checking the size and the hash of every file. A damaged checkpoint is a ConfigError.

    The tensors are on the CPU and mapped from the files, which may be removed meanwhile. A set that was written in
    shards comes back as one set with the labels of all shards.
    """
    manifest, sets = read_files(path)
    files = {name: unite(shards) for name, shards in sets.items()}
    return Checkpoint(manifest.step, files, msgspec.json.decode((path / FACTS).read_bytes()))


def read_files(path: Path) -> tuple[Manifest, dict[str, dict[str, Tensors]]]:
    """Return the manifest and the tensors of a complete checkpoint, by set and then by file (one for each shard)."""
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

    If it is damaged, the ConfigError names an earlier complete one: people decide whether to lose the steps between.
    """
    found = _find(folder)
    if not found:
        raise ConfigError(f"there is no checkpoint in {folder} to resume from: start again without --resume")
    wanted = max(found) if step is None else step
    if wanted not in found:
        steps = ", ".join(map(str, found))
        raise ConfigError(f"there is no checkpoint of step {wanted} in {folder}: pass --from-step with one of {steps}")
    try:
        return load(found[wanted])
    except ConfigError as error:
        whole = _find_whole(path for number, path in found.items() if number < wanted)
        if whole is None:
            raise ConfigError(f"{error}; no earlier one is complete: start again without --resume") from error
        offer = f"--resume {folder.parent} --from-step {_step_of(whole)}"
        raise ConfigError(f"{error}; {whole.name} is complete: resume from it with {offer}") from error


def list_checkpoints(path: Path) -> list[Path]:
    """Return the checkpoints at a path by step: the path itself, or those of a run, or those in a folder."""
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
    """Remove all checkpoints except the last ``keep`` and the one of ``best_step``."""
    if keep < 1:
        raise ConfigError(f"at least 1 checkpoint must be kept, not {keep}")
    found = _find(folder)
    for step in sorted(found)[:-keep]:
        if step != best_step:
            remove(found[step])


def cut(folder: Path, step: int) -> None:
    """Remove the checkpoints after ``step``: a run that resumes there writes them again."""
    for number, path in _find(folder).items():
        if number > step:
            remove(path)


def _find(folder: Path) -> dict[int, Path]:
    """Return all checkpoints by step, in order."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return dict(sorted((_step_of(path), path) for path in paths if _NAME.fullmatch(path.name) and path.is_dir()))


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _find_whole(paths: Iterable[Path]) -> Path | None:
    """Return the last of some paths, in order, that is a complete checkpoint."""
    for path in reversed(list(paths)):
        with suppress(ConfigError):
            read_files(path)
            return path
    return None
