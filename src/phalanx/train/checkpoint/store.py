"""Finding and loading the checkpoints of runs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phalanx.checkpoint import Checkpoint, Content, find_checkpoints, is_checkpoint, read, step_of
from phalanx.checkpoint import load as load_any
from phalanx.errors import ConfigError
from phalanx.train.checkpoint.facts import RunFacts, find_fault, parse_facts
from phalanx.train.config import ModelConfig
from phalanx.train.rundir import RunDir


def load(path: Path) -> Checkpoint:
    """Read a checkpoint after checking every file, and its tensors by its facts. A damaged one is a ConfigError."""
    return load_any(path, find_fault)


def load_for_resume(folder: Path, step: int | None = None, model: ModelConfig | None = None) -> Checkpoint:
    """Read the checkpoint of that step, or the latest. It must be of a run of ``model``, if that is given.

    If it is damaged, the ConfigError names an earlier complete one: people decide whether to lose the steps between.
    """
    found = find_checkpoints(folder)
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
        offer = f"--resume {folder.parent} --from-step {step_of(whole)}"
        raise ConfigError(f"{error}; {whole.name} is complete: resume from it with {offer}") from error


def load_latest(path: Path, model: ModelConfig | None = None) -> Checkpoint:
    """Read the checkpoint at a path, or the latest of a run or a folder, of a run of ``model`` if that is given."""
    chosen = list_checkpoints(path)[-1]
    with _offering_earlier(chosen):
        return _load_of(chosen, model)


def read_chosen(path: Path) -> Content:
    """Return what is in a checkpoint. If it is damaged, the ConfigError names an earlier complete one in its folder."""
    with _offering_earlier(path):
        return read(path, find_fault)


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
    if is_checkpoint(itself):
        return [itself]
    run = RunDir(path)
    found = list(find_checkpoints(run.checkpoints if run.config.is_file() else path).values())
    if not found:
        raise ConfigError(f"there is no checkpoint in {path}: name one, or a run that has some")
    return found


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
    for step, each in reversed(find_checkpoints(path.parent).items()):
        with suppress(ConfigError):
            if step < step_of(path):
                _load_of(each, model)
                return each
    return None
