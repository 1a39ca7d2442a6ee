"""One worker of ``phalanx train``, which starts it with the run directory as argument."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

import msgspec
import torch

import phalanx
from phalanx.coordinator import WorkerClient
from phalanx.errors import ConfigError, NonFiniteGradient, PhalanxError
from phalanx.group import enlist
from phalanx.launch.connect import make_join
from phalanx.launch.env import read_launch
from phalanx.parallel import Exchange, GroupExchange, StarExchange
from phalanx.train.bundle import write_bundle
from phalanx.train.checkpoint import Checkpoint, load_for_resume
from phalanx.train.config import Config, Transport, parse_config
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Best, Keeper
from phalanx.train.loop import Trainer, choose_device, make_model
from phalanx.train.parts import list_parts
from phalanx.train.rundir import RunDir
from phalanx.transport import parse_address

_TIMEOUT_S = 600.0
_INTERRUPTED = 130


class _Wish:
    """Whether somebody asked this worker to stop; asked twice, it ends at once."""

    def __init__(self) -> None:
        self.is_there = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.is_there = True
        signal.signal(number, signal.default_int_handler)


def main() -> None:
    """Train, and say in one line why if that did not work out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--from-step", type=int)
    parser.add_argument("--star", type=parse_address)
    given = parser.parse_args()
    wish = _Wish()
    try:
        _work(RunDir.open(given.run), given, wish)
    except PhalanxError as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:  # asked twice
        sys.exit(_INTERRUPTED)


def _work(run: RunDir, given: argparse.Namespace, wish: _Wish) -> None:
    config = parse_config(run.config.read_text(encoding="utf-8"))
    torch.set_num_threads(config.run.threads_per_worker)
    device = choose_device(config.run.device)
    corpus = open_corpus(config.data)
    start = None if given.from_step is None else load_for_resume(run.checkpoints, given.from_step)
    with _join(config, given, start, corpus.vocabulary) as exchange:
        trainer = Trainer(config, corpus, exchange, device, start)
        best = msgspec.convert(start.facts["best"], Best | None) if start else None
        with Keeper(run, config, corpus, best) if exchange.rank == 0 else nullcontext() as keeper:
            try:
                trainer.run(keeper, lambda: wish.is_there)
            except NonFiniteGradient as error:
                if error.rank == exchange.rank:
                    _bundle(run, trainer, error)
                raise
            if keeper:
                keeper.conclude(trainer.engine)


def _bundle(run: RunDir, trainer: Trainer, error: NonFiniteGradient) -> None:
    try:
        where = write_bundle(run, trainer, error)
    except ConfigError as refusal:  # what halted the run is said in any case
        print(f"it cannot be kept for phalanx reproduce: {refusal}", file=sys.stderr)
    else:
        print(f"to look into it: phalanx reproduce {where}", file=sys.stderr)


@contextmanager
def _join(config: Config, given: argparse.Namespace, start: Checkpoint | None, vocabulary: int) -> Iterator[Exchange]:
    """The others, through whatever they are reached by."""
    lanes, step = config.train.lanes, start.step if start else 0
    if given.star is None:
        over = "tcp" if config.run.transport is Transport.TCP else "auto"
        with phalanx.connect(timeout_s=_TIMEOUT_S, over=over, lanes=lanes, step=step) as group:
            if config.run.transport is Transport.ARENA and len(group.hosts) > 1:
                raise ConfigError("workers cannot share memory here: pass --transport auto or tcp")
            yield GroupExchange(group)
        return
    launch = read_launch()
    assert launch, "phalanx train starts its workers itself"
    parts = [part.what for part in list_parts(make_model(config, vocabulary, torch.device("meta")))]
    with WorkerClient(given.star, credentials=launch.credentials, lanes=lanes, timeout_s=_TIMEOUT_S) as client:
        join = replace(make_join(launch, _TIMEOUT_S), rank=client.worker, lanes=lanes, step=step)
        with enlist(join) as member:
            yield StarExchange(member, client, parts)


if __name__ == "__main__":
    main()
