"""``phalanx trace``: write a trace of a run for Perfetto."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.errors import ConfigError
from phalanx.plain_file import read_plain
from phalanx.telemetry import TorchProfile, WorkerRecords, parse_profile, read_workers, write_trace
from phalanx.train.rundir import RunDir
from phalanx.train.step_range import parse_steps

_LAST = 10
_MOST_BYTES = 2**31  # of a profile


def trace(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    *,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:END",
            help="From which step, up to which. Default: those that were profiled, or the last ten.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Merge what torch.profiler exported on a worker, too; repeat for more. Those of the run are found.",
            show_default=False,
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
    profiles = _read_profiles([*sorted(run.profiles.glob("*.json")), *(profile or [])])
    wanted = parse_steps(steps, "--steps") if steps else profiled_steps(workers, profiles) or last_steps(workers)
    path = out or run.path / "trace.json"
    try:
        path.write_bytes(write_trace(workers, wanted, profiles))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file with --out") from error
    many = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
    print(f"steps {wanted.start} to {wanted.stop - 1} of {many}: {path}")
    if profiles:
        print(f"with {'1 profile' if len(profiles) == 1 else f'{len(profiles)} profiles'} of torch.profiler")
    print(f"times of different machines are right to within {_uncertainty(workers)}")


def last_steps(workers: list[WorkerRecords]) -> range:
    """Return the last ten steps of which there are records."""
    last = max((int(each.table["step"].max()) for each in workers if len(each.table)), default=-1)
    if last < 0:
        raise ConfigError("there are no records yet: let the run take a step")
    return range(max(0, last + 1 - _LAST), last + 1)


def profiled_steps(workers: list[WorkerRecords], profiles: list[TorchProfile]) -> range:
    """Return the steps of which there are profiles, from the first to the last; none if there are no such steps."""
    found = [each.steps(workers[each.find_worker(workers)]) for each in profiles]
    found = [each for each in found if each]
    return range(min(each.start for each in found), max(each.stop for each in found)) if found else range(0)


def _read_profiles(paths: list[Path]) -> list[TorchProfile]:
    try:
        return [parse_profile(str(path), read_plain(path, _MOST_BYTES)) for path in paths]
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename}: {error.strerror}; name a profile of torch.profiler"
        ) from error


def _uncertainty(workers: list[WorkerRecords]) -> str:
    measured = [each.uncertainty_ns for each in workers if each.uncertainty_ns is not None]
    if len(measured) < len(workers):
        return "what the clocks of the machines differ by, since not all of them were compared"
    return f"{max(measured) / 1e6:.2g} ms"
