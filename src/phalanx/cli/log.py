"""``phalanx log``: copy the log of a run to an experiment tracker."""

import time
from pathlib import Path
from typing import Annotated

import typer

from phalanx.train.log import read_steps
from phalanx.train.rundir import RunDir, read_config
from phalanx.train.tracking import TENSORBOARD, Tracker, open_tracker, wall_times

_EVERY_S = 0.5


def log(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    *,
    to: Annotated[
        str,
        typer.Option(metavar="tensorboard|wandb|MODULE", help="The tracker; MODULE has wandb's functions, as trackio."),
    ] = TENSORBOARD,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is over.")] = False,
    project: Annotated[str, typer.Option(help="The project, for trackers like wandb.")] = "phalanx",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder for TensorBoard. Default: tensorboard in RUN_DIR.", show_default=False),
    ] = None,
) -> None:
    """Copy what steps.jsonl has to TensorBoard, Weights & Biases, or a tracker like it.

    This only reads the run, which may be going on: a tracker that fails cannot harm training.
    """
    run = RunDir.open(run_dir)
    name = run.path.resolve().name
    with open_tracker(to, name, project, read_config(run.config), out or run.path / "tensorboard") as tracker:
        last = _copy(run, tracker, -1)
        while follow and not run.result.exists():
            time.sleep(_EVERY_S)
            last = _copy(run, tracker, last)
        last = _copy(run, tracker, last)  # what came before the result
    print(f"{to} has the steps up to {last}" if last >= 0 else "there is no step yet")


def _copy(run: RunDir, tracker: Tracker, last: int) -> int:
    """Log the steps after ``last``, and return the last one. A run that resumes repeats steps with the same bits."""
    records = read_steps(run.steps) if run.steps.exists() else []
    new = [record for record in records if record.step > last]
    if not new:
        return last
    for record, wall_s in zip(new, wall_times(new, run.steps.stat().st_mtime), strict=True):
        tracker.log(record, wall_s)
    return new[-1].step
