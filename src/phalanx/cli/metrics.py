"""``phalanx metrics``: print how a run stands, for Prometheus and other programs."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from phalanx.coordinator import read_events
from phalanx.telemetry import add_up, judge, read_workers
from phalanx.train.incidents import find_incidents
from phalanx.train.log import read_steps
from phalanx.train.run_status import RunStatus, describe_status, format_metrics
from phalanx.train.rundir import RunDir, read_config


def metrics(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, the content of status.json.")] = False,
) -> None:
    """Print how a run stands in the text format of Prometheus.

    Prometheus reads it by way of the textfile collector of its node_exporter.
    """
    status = read_status(RunDir.open(run_dir))
    print(msgspec.json.encode(status).decode() if as_json else format_metrics(status), end="\n" if as_json else "")


def read_status(run: RunDir) -> RunStatus:
    """Return how the run in a directory stands."""
    workers = read_workers(run.telemetry) if run.telemetry.exists() else []
    times = add_up(workers) if workers else None
    return describe_status(
        read_steps(run.steps) if run.steps.exists() else (),
        planned_steps=read_config(run.config).train.steps,
        incidents=find_incidents(read_events(run.events)) if run.events.exists() else (),
        times=times,
        report=judge(times) if times else None,
    )
