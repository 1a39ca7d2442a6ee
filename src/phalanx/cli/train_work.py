"""What a worker of ``phalanx train`` does: join the others, train with them, and save the run."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from types import FrameType

import torch

import phalanx
from phalanx.cli.torch_group import choose_own_device, join_torch
from phalanx.errors import ConfigError, NonFiniteGradient
from phalanx.gradient_server import WorkerClient
from phalanx.group import ElasticRun, enlist
from phalanx.launch.connect import enter_run, make_join
from phalanx.launch.env import Launch, read_launch
from phalanx.launch.rank_channel import tell_rank
from phalanx.launch.supervision import STOP_SIGNAL
from phalanx.launch.torch_env import read_local_rank
from phalanx.parallel import Exchange, StarExchange
from phalanx.telemetry import OFF, Recorder, RecordWriter, recording
from phalanx.train.bundle import write_bundle
from phalanx.train.checkpoint import Checkpoint, RunFacts, load_for_resume, parse_facts
from phalanx.train.config import Config, EngineChoice, Transport
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Keeper
from phalanx.train.loop import Trainer, choose_device, make_model
from phalanx.train.parts import list_parts
from phalanx.train.profiling import StepProfiler
from phalanx.train.rundir import RunDir, environment, read_config
from phalanx.train.step_range import parse_steps
from phalanx.wire import Address

_TIMEOUT_S = 600.0
_log = logging.getLogger("phalanx")


class Request:
    """Remembers whether a signal has come. The same signal a second time ends this process at once.

    Until there is a request, the signal ends the process: a worker that has not joined the others has nothing to save.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.was_made = False
        signal.signal(number, self._receive)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.was_made = True
        signal.signal(number, signal.SIG_DFL)


def work(
    run: RunDir,
    from_step: int | None = None,
    star: Address | None = None,
    launch: Launch | None = None,
    *,
    config: Config | None = None,
    store: str | None = None,
    can_keep: bool = True,
    home: str = "",
    conclude: Callable[[], object] = lambda: None,
) -> bool:
    """Train to the end, or until somebody asks to stop. Return False if this worker left and the others go on.

    ``star`` is the address of the gradient server, if any, and ``launch`` how to join, by default as the environment
    says. ``config`` is by default that of the run. ``store`` is the file by which workers over torch.distributed find
    each other; without it, their launcher says where they meet. A worker that ``can_keep`` sees the directory of the
    run; for any other one ``run`` is only a place for a config, and ``home`` says where the directory is. The worker
    that has written the result calls ``conclude``.
    """
    config = config or read_config(run.config)
    torch.set_num_threads(config.run.threads_per_worker)
    is_torch = config.run.engine is EngineChoice.TORCH
    if is_torch:
        device = choose_own_device(config, is_local=store is not None)
    else:
        device = choose_device(config.run.device, config.run.gpu, read_local_rank())
    _use(device)
    corpus = open_corpus(config.data)
    start = None if from_step is None else load_for_resume(run.checkpoints, from_step, config.model)
    launch = launch or read_launch()
    assert launch, "a launcher has started this worker"
    if is_torch:
        joining: AbstractContextManager[Exchange | ElasticRun] = join_torch(config, device, launch, store)
    else:
        joining = _join(config, star, start, corpus.vocabulary, launch, can_keep=can_keep)
    with (
        joining as exchange,
        _recording(run, config, exchange, can_keep=can_keep) as records,
        _profiling(run, config, can_keep=can_keep) as profiler,
    ):
        stop, leave = Request(STOP_SIGNAL), Request(signal.SIGTERM)
        trainer = Trainer(config, corpus, exchange, device, start, records.recorder, profiler)
        if trainer.exchange.rank == 0 and can_keep:
            run.record(environment(version=phalanx.__version__, threads=torch.get_num_threads(), device=device.type))
        facts = parse_facts(start.facts) if start else None
        best = facts.best if isinstance(facts, RunFacts) else None
        saved = start.step if start else 0
        with Keeper(run, config, corpus, exchange, best, saved=saved, home=home, records=records) as keeper:
            try:
                is_elastic = isinstance(exchange, ElasticRun)
                is_over = trainer.run(
                    keeper,
                    lambda: stop.was_made or (leave.was_made and not is_elastic),
                    lambda: leave.was_made and is_elastic,
                )
            except NonFiniteGradient as error:
                if error.rank == trainer.exchange.rank and can_keep:
                    _bundle(run, trainer, error)
                raise
            if is_over and trainer.exchange.rank == 0:
                conclude()
            return is_over


def _use(device: torch.device) -> None:
    """Prepare this process for its device. On a CPU everything used here is deterministic."""
    if device.type == "cpu":
        torch.use_deterministic_algorithms(False)
        return
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads what it has not written
    _log.info("on %s, one of %d: %s", device, torch.cuda.device_count(), torch.cuda.get_device_name(device))


def _bundle(run: RunDir, trainer: Trainer, error: NonFiniteGradient) -> None:
    try:
        where = write_bundle(run, trainer, error)
    except ConfigError as refusal:  # the reason of the halt is reported in any case
        print(f"the lane cannot be saved for phalanx reproduce: {refusal}", file=sys.stderr)
    else:
        print(f"to look into it: phalanx reproduce {where}", file=sys.stderr)


def _recording(
    run: RunDir, config: Config, exchange: Exchange | ElasticRun, *, can_keep: bool
) -> AbstractContextManager[RecordWriter]:
    """Record what this worker does: in the directory of the run, or by way of the coordinator, which sees it."""
    if config.run.telemetry and can_keep:
        return recording(run.telemetry)
    if config.run.telemetry and isinstance(exchange, ElasticRun):
        return RecordWriter(Recorder(), exchange.send_records)
    return RecordWriter(OFF, lambda _: None)


def _profiling(run: RunDir, config: Config, *, can_keep: bool) -> StepProfiler:
    """Return the profiler of this worker. Only those that see the directory of the run have a place for its file."""
    steps = config.run.profile_steps if can_keep else None
    path = run.profiles / f"{socket.gethostname()}-{os.getpid()}.json"
    return StepProfiler(path, parse_steps(steps, "run.profile_steps") if steps else range(0))


@contextmanager
def _join(
    config: Config, star: Address | None, start: Checkpoint | None, vocabulary: int, launch: Launch, *, can_keep: bool
) -> Iterator[Exchange | ElasticRun]:
    """Connect to the other workers, directly or through a gradient server."""
    lanes, step = config.train.lanes, start.step if start else 0
    if star is None:
        over = "tcp" if config.run.transport is Transport.TCP else "auto"
        joining = enter_run(launch, timeout_s=_TIMEOUT_S, over=over, lanes=lanes, step=step, can_keep=can_keep)
        with joining as joined:
            if config.run.transport is Transport.ARENA and len(joined.group.hosts) > 1:
                raise ConfigError("workers cannot share memory here: pass --transport auto or tcp")
            yield joined
        return
    parts = [part.what for part in list_parts(make_model(config, vocabulary, torch.device("meta")))]
    with WorkerClient(star, credentials=launch.credentials, lanes=lanes, timeout_s=_TIMEOUT_S) as client:
        join = replace(make_join(launch, _TIMEOUT_S), rank=client.worker, lanes=lanes, step=step)
        with enlist(join) as member, closing(StarExchange(member, client, parts)) as exchange:
            tell_rank(launch.channel, exchange.rank)
            yield exchange
