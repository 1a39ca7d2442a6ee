"""What ``phalanx bench checkpoint`` measures, and its figures. The workers run ``checkpoint_worker``."""

import statistics
from enum import Enum

import msgspec

from phalanx.bench.text import format_time
from phalanx.bench.training.driver import drive, make_config
from phalanx.train.config import ModelConfig

HEADINGS = ("system", "median step", "pause", "steps beside it", "time lost", "added")
MODELS = (ModelConfig(), make_config(384))
"""The default model of ``phalanx train``, and one of about 11 M parameters."""


class Saving(Enum):
    """A way to save a checkpoint."""

    NONE = "none"
    """No checkpoint, for comparison."""
    FOREGROUND = "foreground"
    """Training stands still until the checkpoint is on the disk."""
    BACKGROUND = "background"
    """Training stands still until the state is copied. A thread writes the copy."""


class SavingTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tells workers to save ``rounds`` checkpoints in each way, while they take steps."""

    model: int  # in MODELS
    ranks: int
    rounds: int
    tokens: int
    batch: int


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds of one checkpoint: of the pause of training, and of each step beside it.

    If training waited for it, the next step is there instead.
    """

    pause_s: float
    steps_s: list[float]


class Windows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workers' answer: the checkpoints by the way in which they were saved, and the model's size."""

    parameters: int
    windows: dict[str, list[Window]]


class SavingRow(msgspec.Struct, frozen=True):
    """The figures of one way to save: medians over all rounds.

    ``lost_s`` is the pause and how much longer the steps beside the checkpoint took than steps without any in the same
    round; ``added`` is its ratio to the time of as many such steps. Without a step beside it, it is compared with one.
    """

    system: str
    ranks: int
    parameters: int
    step_s: float
    pause_s: float
    steps: float
    lost_s: float
    added: float


def describe(task: SavingTask, parameters: int) -> str:
    """Return a title for a table of checkpoints."""
    return f"checkpoints, {parameters / 1e6:.1f} M parameters, {task.batch} x {task.tokens} tokens a worker"


def measure_savings(task: SavingTask) -> list[SavingRow]:
    """Start workers, have them save checkpoints in every way in turn, and return a row for each way."""
    return rows(drive("phalanx.bench.training.checkpoint_worker", task, task.ranks, Windows), task.ranks)


def rows(found: Windows, ranks: int) -> list[SavingRow]:
    """Return a row for each way to save."""
    usual_s = [statistics.median(window.steps_s) for window in found.windows[Saving.NONE.value]]
    lost_s = {
        system: [_lost_s(window, usual) for window, usual in zip(windows, usual_s, strict=True)]
        for system, windows in found.windows.items()
    }
    return [
        SavingRow(
            system=system,
            ranks=ranks,
            parameters=found.parameters,
            step_s=statistics.median(step_s for window in windows for step_s in window.steps_s),
            pause_s=statistics.median(window.pause_s for window in windows),
            steps=statistics.median(len(window.steps_s) for window in windows),
            lost_s=statistics.median(lost_s[system]),
            added=statistics.median(
                lost / (len(window.steps_s) * usual)
                for lost, window, usual in zip(lost_s[system], windows, usual_s, strict=True)
            ),
        )
        for system, windows in found.windows.items()
    ]


def cells(row: SavingRow) -> tuple[str, ...]:
    """Return a line of the table for people."""
    if row.system == Saving.NONE.value:
        return row.system, format_time(row.step_s), "", "", "", ""
    return (
        row.system,
        format_time(row.step_s),
        format_time(row.pause_s),
        f"{row.steps:g}" if row.system == Saving.BACKGROUND.value else "none",
        f"{row.lost_s * 1e3:.1f} ms",
        f"{row.added:+.1%}",
    )


def _lost_s(window: Window, usual_s: float) -> float:
    return window.pause_s + sum(window.steps_s) - len(window.steps_s) * usual_s
