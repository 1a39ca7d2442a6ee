"""``phalanx plot``: draw a run."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.train.log import read_steps
from phalanx.train.plot import draw
from phalanx.train.rundir import RunDir


def plot(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write; plot.png in RUN_DIR by default.", show_default=False),
    ] = None,
) -> None:
    """Draw the loss and the seconds per step of a run (compute, exchange, waiting) as a PNG."""
    run = RunDir.open(run_dir)
    out = out or run.path / "plot.png"
    entropy = run.read_result().unigram_entropy if run.result.exists() else None
    draw({run.path.resolve().name: read_steps(run.steps)}, out, unigram_entropy=entropy)
    print(out)
