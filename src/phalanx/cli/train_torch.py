"""``phalanx train --engine torch`` under torchrun, srun or mpirun: this process is one worker of the run."""

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

import phalanx
from phalanx.cli.train_launch import rewind
from phalanx.cli.train_show import Display, show_beginning, show_end, show_failure
from phalanx.cli.train_work import work
from phalanx.errors import ConfigError, PhalanxError
from phalanx.launch.env import Launch
from phalanx.train.checkpoint import load_for_resume
from phalanx.train.config import Config
from phalanx.train.config_text import format_config
from phalanx.train.data import open_corpus
from phalanx.train.rundir import RunDir, environment

_REFUSED = 2


def train_under(launch: Launch, config: Config, old: RunDir | None, from_step: int | None, *, as_json: bool) -> int:
    """Train as the worker that another launcher has started, and return the exit status.

    Rank 0 makes the run directory and writes everything. To resume, all ranks must see that of the ``old`` run.
    """
    assert launch.size is not None, "launchers say how many there are"
    of_run = msgspec.structs.replace(config.run, workers=launch.size, min_workers=1)
    config = msgspec.structs.replace(config, run=of_run)
    with ExitStack() as stack:
        if launch.rank == 0:
            return _lead(launch, config, old, from_step, stack, as_json=as_json)
        run = old
        if run is None:  # only the config is written there
            folder = stack.enter_context(TemporaryDirectory(prefix="phalanx-train-"))
            run = _create(config, Path(folder, "run"))
        start = load_for_resume(run.checkpoints, from_step, config.model).step if old else None
        return _work(launch, config, run, start, can_keep=old is not None)


def _lead(
    launch: Launch, config: Config, old: RunDir | None, from_step: int | None, stack: ExitStack, *, as_json: bool
) -> int:
    """Work as rank 0, which shows how the run proceeds and what came of it."""
    corpus = open_corpus(config.data)
    run = old or _create(config, Path(config.run.directory) if config.run.directory else None)
    stack.enter_context(run.hold())
    run.fence.unlink(missing_ok=True)
    start = rewind(run, config, corpus, from_step) if old else None
    if not as_json:
        show_beginning(run, config, corpus, start)
    with Display(run, config, start or 0, is_silent=as_json):
        status = _work(launch, config, run, start, can_keep=True)
    if run.result.exists():
        show_end(run, config, start, as_json=as_json)
    else:
        show_failure(run)
    return status


def _work(launch: Launch, config: Config, run: RunDir, start: int | None, *, can_keep: bool) -> int:
    try:
        work(run, start, launch=launch, config=config, can_keep=can_keep)
    except PhalanxError as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        return _REFUSED if isinstance(error, ConfigError) else 1
    return 0


def _create(config: Config, path: Path | None) -> RunDir:
    threads, device = config.run.threads_per_worker, config.run.device.value
    facts = environment(version=phalanx.__version__, threads=threads, device=device)
    return RunDir.create(path, format_config(config), facts)
