"""Taking training steps in several systems, in turn, in the same processes: what the workers have in common."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import distributed

from phalanx.bench.training.driver import ANSWER, Training, Turns, make_config
from phalanx.group import Group
from phalanx.train.config import ModelConfig
from phalanx.train.model import Transformer, count_parameters, loss

Step = Callable[[torch.Tensor], object]

_VOCABULARY = 256
_WARMUP = 3


def read_command() -> tuple[Training, Path]:
    """What this worker is told, and the folder in which the ranks meet and answer."""
    words, folder = sys.argv[1:]
    return msgspec.json.decode(words, type=Training), Path(folder)


def answer(value: msgspec.Struct, group: Group, folder: Path) -> None:
    """Leave what was measured for the driver; rank 0 does."""
    if group.rank == 0:
        (folder / ANSWER).write_bytes(msgspec.json.encode(value))


@contextmanager
def gloo(group: Group, folder: Path, *, is_wanted: bool) -> Iterator[None]:
    """A process group of torch over Gloo, of the same ranks; or nothing. No model of torch's DDP may outlive it."""
    if not is_wanted:
        yield
        return
    store = distributed.FileStore(str(folder / "gloo"), group.size)
    distributed.init_process_group("gloo", store=store, rank=group.rank, world_size=group.size)
    try:
        yield
    finally:
        # A model that goes after the group ends Gloo's threads while it holds the GIL, for which one of them may wait.
        gc.collect()
        distributed.destroy_process_group()


def make_model(config: ModelConfig) -> Transformer:
    """The same model on every rank and in every system."""
    torch.manual_seed(0)
    return Transformer(config, _VOCABULARY)


def make_batch(number: int, group: Group, training: Training) -> torch.Tensor:
    """What this rank trains on in step ``number``, in every system."""
    random = torch.Generator().manual_seed(number * group.size + group.rank)
    return torch.randint(_VOCABULARY, (training.batch, training.tokens + 1), generator=random)


def plain_loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """A step as most people write it."""

    def step(batch: torch.Tensor) -> None:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def take_turns(prepare: Callable[[str], Step], group: Group, training: Training) -> Turns:
    """The seconds of every step, which ``prepare`` makes for each system. All ranks have met before a clock starts."""
    steps = {name: prepare(name) for name in training.systems}
    seconds = np.zeros((len(steps), _WARMUP + training.rounds))
    for number in range(_WARMUP + training.rounds):
        batch = make_batch(number, group, training)
        for index, step in enumerate(steps.values()):
            group.barrier()
            began = time.perf_counter()
            step(batch)
            seconds[index, number] = time.perf_counter() - began
    slowest = group.all_gather(seconds[:, _WARMUP:].copy()).max(axis=0)
    parameters = count_parameters(make_config(training.width), _VOCABULARY)
    return Turns(parameters, dict(zip(steps, slowest.tolist(), strict=True)))
