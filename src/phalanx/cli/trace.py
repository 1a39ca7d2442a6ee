"""``phalanx trace``: write a trace of a run for Perfetto."""

import re
from pathlib import Path
from typing import Annotated

import typer

from phalanx.errors import ConfigError
from phalanx.telemetry import WorkerRecords, read_workers, write_trace
from phalanx.train.rundir import RunDir

_LAST = 10


def trace(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    *,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:END", help="From which step, up to which. Default: the last ten.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file. Default: trace.json in the directory.", show_default=False)
    ] = None,
) -> None:
    """Write a trace with a track for every rank and thread. Open it at ui.perfetto.dev or in chrome://tracing.

    Arrows lead from a bucket that leaves a rank to the exchanges that had to wait for it.
    """
    run = RunDir(run_dir)
    workers = read_workers(run.telemetry)
    wanted = parse_steps(steps) if steps else last_steps(workers)
    path = out or run.path / "trace.json"
    try:
        path.write_bytes(write_trace(workers, wanted))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file with --out") from error
    many = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
    print(f"steps {wanted.start} to {wanted.stop - 1} of {many}: {path}")
    print(f"times of different machines are right to within {_uncertainty(workers)}")


def parse_steps(text: str) -> range:
    """Return the steps that "100:110" means: from 100 on, up to but not including 110."""
    found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ConfigError(f"--steps is the first step and the end, as in 100:110, not {text!r}")
    return range(int(found[1]), int(found[2]))


def last_steps(workers: list[WorkerRecords]) -> range:
    """Return the last ten steps of which there are records."""
    last = max((int(each.table["step"].max()) for each in workers if len(each.table)), default=-1)
    if last < 0:
        raise ConfigError("there are no records yet: let the run take a step")
    return range(max(0, last + 1 - _LAST), last + 1)


def _uncertainty(workers: list[WorkerRecords]) -> str:
    measured = [each.uncertainty_ns for each in workers if each.uncertainty_ns is not None]
    if len(measured) < len(workers):
        return "what the clocks of the machines differ by, since not all of them were compared"
    return f"{max(measured) / 1e6:.2g} ms"
