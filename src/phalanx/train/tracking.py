"""Copying the log of a run to an experiment tracker: TensorBoard, Weights & Biases, or one with the same functions.

It reads the run directory and is no part of training, so a tracker that is slow, full or away can never harm a run.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from phalanx.errors import ConfigError
from phalanx.train.config import Config
from phalanx.train.record import StepRecord

TENSORBOARD = "tensorboard"
_NEEDED = ("init", "log", "finish")
_INSTALL = "pip install 'phalanx-train[trackers]'"


class Tracker(Protocol):
    """Where figures of steps go."""

    def log(self, record: StepRecord, wall_s: float) -> None:
        """Log one step, which was committed at this time since 1970."""


def figures_of(record: StepRecord) -> dict[str, float]:
    """Return what trackers show of a step, by name. A slash makes groups of charts."""
    figures = {
        "loss": record.loss,
        "norm": record.norm,
        "learning rate": record.lr,
        "tokens per second": record.tokens / record.seconds if record.seconds else 0.0,
        "workers": float(record.workers),
        "seconds/step": record.seconds,
        "seconds/compute": record.compute_s,
        "seconds/exchange": record.exchange_s,
        "seconds/wait": record.wait_s,
    }
    return figures if record.eval_loss is None else figures | {"held-out loss": record.eval_loss}


def wall_times(records: Sequence[StepRecord], end_s: float) -> list[float]:
    """Return about when each step was committed, if the last one was at ``end_s``: the log has only durations."""
    times, now = [], end_s
    for record in reversed(records):
        times.append(now)
        now -= record.seconds
    return times[::-1]


@contextmanager
def open_tracker(to: str, name: str, project: str, config: Config, folder: Path) -> Iterator[Tracker]:
    """Yield the tracker called ``to``: "tensorboard", or a module with the functions of wandb.

    TensorBoard's file is written to ``folder``. Other trackers get ``name`` and ``project``, and the config.
    """
    if to == TENSORBOARD:
        with _event_file(folder) as tracker:
            yield tracker
        return
    module = _import(to)
    missing = [each for each in _NEEDED if not callable(getattr(module, each, None))]
    if missing:
        raise ConfigError(f"{to} is no tracker like wandb: it has no {' and no '.join(missing)}")
    module.init(project=project, name=name, config=msgspec.to_builtins(config))
    try:
        yield _LikeWandb(module)
    finally:
        module.finish()


class _LikeWandb:
    """A module with the functions of wandb, such as trackio."""

    def __init__(self, module: Any) -> None:  # Any: whatever has these functions
        self._module = module

    def log(self, record: StepRecord, wall_s: float) -> None:  # noqa: ARG002 - these take their own time
        self._module.log(figures_of(record), step=record.step)


class _EventFile:
    """An event file of TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
            from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
            from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415
        except ImportError:
            raise ConfigError(f"this needs the package tensorboard: {_INSTALL}") from None
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))

    def log(self, record: StepRecord, wall_s: float) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in figures_of(record).items()]
        self._writer.add_event(self._event(wall_time=wall_s, step=record.step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _event_file(folder: Path) -> Iterator[_EventFile]:
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty, and its steps would be there twice: remove it, or pass --out FOLDER")
    try:
        file = _EventFile(folder)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}; pass --out FOLDER") from error
    try:
        yield file
    finally:
        file.close()


def _import(name: str) -> Any:  # Any: a module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = _INSTALL if name == "wandb" else "install it, or pass --to tensorboard or wandb"
        raise ConfigError(f"there is no tracker {name!r} here ({error}): {hint}") from None
