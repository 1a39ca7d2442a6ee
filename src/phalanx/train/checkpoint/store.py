"""Saving checkpoints, finding them again, and loading them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from phalanx.errors import ConfigError
from phalanx.train.checkpoint.contents import RunFacts, parse_facts
from phalanx.train.checkpoint.draft import Entering, always, remove, write
from phalanx.train.checkpoint.reader import Content, read
from phalanx.train.checkpoint.shard_files import unite
from phalanx.train.config import ModelConfig
from phalanx.train.rundir import RunDir

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


def save(folder: Path, checkpoint: Checkpoint, entering: Entering = always) -> Path:
    """Write the checkpoint to the disk; return its directory.

    The files are written under a temporary name beside it, which is renamed at the end. If that fails, nothing stays.
    A complete checkpoint of the same step with the same tensors is kept as it is; any other is replaced. All that
    others could notice happens within ``entering()``. If that yields False, nothing is saved.
    """
    return write(folder, checkpoint.step, checkpoint.files, checkpoint.facts, entering)


def is_saved(folder: Path, step: int) -> bool:
    """Return whether there is a checkpoint of a step."""
    return step in _find(folder)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint after checking the size and the hash of every file. A damaged checkpoint is a ConfigError.

    The tensors are on the CPU and mapped from the files, which may be removed meanwhile. A set that was written in
    shards comes back as one set with the labels of all shards.
    """
    manifest, facts, sets = read(path)
    return Checkpoint(manifest.step, {name: unite(shards) for name, shards in sets.items()}, facts)


def load_for_resume(folder: Path, step: int | None = None, model: ModelConfig | None = None) -> Checkpoint:
    """Read the checkpoint of that step, or the latest. It must be of a run of ``model``, if that is given.

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
        return _load_of(found[wanted], model)
    except ConfigError as error:
        whole = _find_whole(found[wanted], model)
        if whole is None:
            raise ConfigError(f"{error}; no earlier one is complete: start again without --resume") from error
        offer = f"--resume {folder.parent} --from-step {_step_of(whole)}"
        raise ConfigError(f"{error}; {whole.name} is complete: resume from it with {offer}") from error


def load_latest(path: Path, model: ModelConfig | None = None) -> Checkpoint:
    """Read the checkpoint at a path, or the latest of a run or a folder, of a run of ``model`` if that is given."""
    chosen = list_checkpoints(path)[-1]
    with _offering_earlier(chosen):
        return _load_of(chosen, model)


def read_chosen(path: Path) -> Content:
    """Return what is in a checkpoint. If it is damaged, the ConfigError names an earlier complete one in its folder."""
    with _offering_earlier(path):
        return read(path)


@contextmanager
def _offering_earlier(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        whole = _find_whole(path)
        offer = "no earlier one beside it is complete" if whole is None else f"{whole} is complete: use that one"
        raise ConfigError(f"{error}; {offer}") from error


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


def _load_of(path: Path, model: ModelConfig | None) -> Checkpoint:
    """Read a checkpoint, which must be of a run of ``model``, if that is given."""
    found = load(path)
    if model is not None:
        facts = parse_facts(found.facts)
        if not isinstance(facts, RunFacts):
            raise ConfigError(f"checkpoint {path} is not of a run of phalanx train")
        if facts.model != model:
            raise ConfigError(f"checkpoint {path} is of another model than the one in the config of the run")
    return found


def _find_whole(path: Path, model: ModelConfig | None = None) -> Path | None:
    """Return the last complete checkpoint before the one at ``path``, in its folder."""
    for step, each in reversed(_find(path.parent).items()):
        with suppress(ConfigError):
            if step < _step_of(path):
                _load_of(each, model)
                return each
    return None
