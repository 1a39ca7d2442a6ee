"""Starts the workers of ``phalanx train``, and keeps them going."""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from phalanx.cli.reachable import reachable
from phalanx.cli.train_venue import Venue
from phalanx.coordinator import Terms
from phalanx.errors import ConfigError, PhalanxError
from phalanx.gradient_server import GradientServer
from phalanx.group import Over
from phalanx.launch import local
from phalanx.launch.env import LOOPBACK, Launch
from phalanx.launch.mishaps import AWAY
from phalanx.launch.running_coordinator import RunningCoordinator
from phalanx.launch.storm import OneHost, Storm, Weather, Workers
from phalanx.launch.supervision import STOP_SIGNAL
from phalanx.train import log
from phalanx.train.config import Config, EngineChoice, Transport
from phalanx.train.config_text import format_config
from phalanx.train.data import Corpus
from phalanx.train.log import StepCounter
from phalanx.train.rundir import RunDir
from phalanx.transport import Credentials, format_address, make_token
from phalanx.wire import Address

_GRACE_S = 120.0  # for the current step and a checkpoint
_STAR_S = 600.0  # how long workers wait for each other
_MOST_LOSSES = 3  # of all workers at once, without a checkpoint between

Times = tuple[float | None, float | None]


def launch(
    run: RunDir,
    config: Config,
    corpus: Corpus,
    start: int | None,
    times: Times,
    venue: Venue | None = None,
    weather: Weather | None = None,
    log_dir: Path | None = None,
) -> int:
    """Train with workers of this machine, and return the exit status. ``start`` is the checkpoint to begin with.

    Workers of other machines can join in if there is a ``venue``. ``weather`` is what shall happen to the workers. With
    ``log_dir``, their output is also written there.
    """
    credentials = venue.credentials if venue else Credentials(make_token().encode())
    run.fence.unlink(missing_ok=True)  # epochs are counted from 1 again
    program = local.Program(
        name="phalanx.cli.train_worker",
        is_module=True,
        workers=venue.local if venue else config.run.workers,
        over=Over.TCP if config.run.transport is Transport.TCP else Over.AUTO,
        patience_s=times[0],
        stall_s=times[1],
        grace_s=_GRACE_S,
        stop_signal=STOP_SIGNAL,
        has_ranks=config.run.transport is not Transport.STAR,
        log_dir=log_dir,
    )
    if config.run.transport is Transport.STAR:
        with _star(config, credentials) as star:
            arguments = *_arguments(run, start), *star
            return local.run(replace(program, arguments=arguments), credentials)
    if config.run.engine is EngineChoice.TORCH:
        with TemporaryDirectory(prefix="phalanx-train-") as folder:
            arguments = *_arguments(run, start), "--store", f"{folder}/store"
            return local.run(replace(program, arguments=arguments), credentials)
    losses, last = 0, start
    while True:
        ending = _launch_elastic(run, config, program, start, credentials, venue, weather)
        if not ending.is_lost:
            return ending.status
        start = _fall_back(run, config, corpus)
        losses = losses + 1 if start == last else 0
        last = start
        if losses >= _MOST_LOSSES:
            words = f"all workers were lost {losses + 1} times, and no checkpoint was saved between"
            raise ConfigError(f"{words}: look at why they die, then continue with --resume {run.path}")
        where = f"the checkpoint of step {start}" if start else "the beginning"
        print(f"phalanx: the state of the run was lost with its workers: it goes on from {where}", file=sys.stderr)


def rewind(run: RunDir, config: Config, corpus: Corpus, from_step: int | None) -> int:
    """Return the step to resume at, after removing everything later. A run that cannot resume stays unchanged."""
    from phalanx.train import checkpoint  # noqa: PLC0415 - it imports torch, which takes seconds

    found = checkpoint.load_for_resume(run.checkpoints, from_step, config.model)
    if found.facts["corpus"] != corpus.fingerprint():
        raise ConfigError(f"{corpus.name} is not the text that this run was trained on: restore that text to resume")
    is_concluded = run.result.exists()  # else it was killed after its last step, and only its result is missing
    if found.step > config.train.steps or (found.step == config.train.steps and is_concluded):
        raise ConfigError(f"this run is complete: its {found.step} steps are taken; pass more --steps to continue")
    log.read_steps(run.steps)  # a damaged log is refused before anything is changed
    run.change_config(format_config(config))
    log.cut(run.steps, found.step)
    checkpoint.cut(run.checkpoints, found.step)
    run.result.unlink(missing_ok=True)
    return found.step


def _launch_elastic(
    run: RunDir,
    config: Config,
    program: local.Program,
    start: int | None,
    credentials: Credentials,
    venue: Venue | None,
    weather: Weather | None,
) -> local.Ending:
    run.journal.unlink(missing_ok=True)
    away_s = AWAY * Terms.exactly(None, stall_s=program.stall_s).stall_s
    mishaps = ("--mishaps", f"{away_s}") if weather else ()
    first = venue.first if venue else max(program.workers, config.run.min_workers)
    options = ["--workers", f"{config.run.min_workers}:{config.run.workers}", "--first", f"{first}"]
    options += ["--journal", str(run.journal), "--events", str(run.events)]
    options += ["--telemetry", str(run.telemetry)] if config.run.telemetry else []
    options += [] if program.patience_s is None else ["--patience", f"{program.patience_s}"]
    options += [] if program.stall_s is None else ["--stall", f"{program.stall_s}"]
    bind = venue.bind if venue else Address(LOOPBACK, 0)
    with ExitStack() as stack:
        coordinator = stack.enter_context(RunningCoordinator(bind, options, credentials, run.coordinator_log))
        where = reachable(coordinator.address)
        stack.enter_context(run.announce(format_address(where)))
        if venue:
            venue.open(coordinator.address)
        member = Launch.joining(where, credentials, (None, None), program.over)

        def rage(workers: Workers) -> AbstractContextManager[object]:
            if weather is None:
                return nullcontext()
            victims = OneHost(workers, lambda: coordinator.pid)
            count_steps = StepCounter(run.steps).count
            return Storm(weather, victims, count_steps, away_s=away_s, is_shared=config.run.zero)

        return local.supervise(
            replace(program, arguments=(*_arguments(run, start), *mishaps)),
            [member] * program.workers,
            replace(program, arguments=(*_arguments(run, None), *mishaps)),
            StepCounter(run.steps).count,
            has_others=venue.has_others if venue else lambda _: False,
            beside=rage,
        )


def _fall_back(run: RunDir, config: Config, corpus: Corpus) -> int | None:
    """Return the step of the last checkpoint, or None if there is none, after removing everything later."""
    run.fence.unlink(missing_ok=True)
    if any(run.checkpoints.glob("step-*")):
        return rewind(run, config, corpus, None)
    if run.steps.exists():
        log.cut(run.steps, 0)
    return None


def _arguments(run: RunDir, start: int | None) -> tuple[str, ...]:
    return (str(run.path), *([] if start is None else ["--from-step", str(start)]))


@contextmanager
def _star(config: Config, credentials: Credentials) -> Iterator[list[str]]:
    """Run a gradient server, and yield the workers' arguments for it."""
    with GradientServer(
        workers=config.run.workers, lanes=config.train.lanes, credentials=credentials, timeout_s=_STAR_S
    ) as server:

        def serve() -> None:
            with suppress(PhalanxError):  # workers report their own errors
                server.wait_for_workers(_GRACE_S)
                while True:
                    server.exchange_next()

        thread = threading.Thread(target=serve, name="phalanx-star")
        thread.start()
        try:
            yield ["--star", format_address(server.address)]
        finally:
            server.close()
            thread.join()
