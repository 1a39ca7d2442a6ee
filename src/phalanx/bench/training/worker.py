"""What all workers that train for a benchmark do: read the task, take steps in every system in turn, answer."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import distributed

from phalanx.bench.training.driver import ANSWER, Training, Turns, make_config
from phalanx.group import Group
from phalanx.train.config import ModelConfig
from phalanx.train.model import Transformer, loss
from phalanx.train.shapes import count_parameters

Step = Callable[[torch.Tensor], object]
_Task = TypeVar("_Task", bound=msgspec.Struct)

VOCABULARY = 256
_WARMUP = 3


def read_command(kind: type[_Task]) -> tuple[_Task, Path]:
    """Return the task of this worker, and the folder through which the ranks meet and answer."""
    words, folder = sys.argv[1:]
    return msgspec.json.decode(words, type=kind), Path(folder)


def answer(value: msgspec.Struct, group: Group, folder: Path) -> None:
    """Write the answer for the driver, on rank 0."""
    if group.rank == 0:
        (folder / ANSWER).write_bytes(msgspec.json.encode(value))


@contextmanager
def gloo(group: Group, folder: Path, *, is_wanted: bool) -> Iterator[None]:
    """Make a torch process group over Gloo of the same ranks, if wanted. No DDP model may outlive it."""
    if not is_wanted:
        yield
        return
    store = distributed.FileStore(str(folder / "gloo"), group.size)
    distributed.init_process_group("gloo", store=store, rank=group.rank, world_size=group.size)
    try:
        yield
    finally:
        # A model destroyed later would join Gloo's threads while it holds the GIL, for which one of them may wait.
        gc.collect()
        distributed.destroy_process_group()


def make_model(config: ModelConfig) -> Transformer:
    """Return a model, the same on every rank and in every system."""
    torch.manual_seed(0)
    return Transformer(config, VOCABULARY)


def make_batch(number: int, group: Group, training: Training) -> torch.Tensor:
    """Return the batch of this rank for step ``number``, the same in every system."""
    random = torch.Generator().manual_seed(number * group.size + group.rank)
    return torch.randint(VOCABULARY, (training.batch, training.tokens + 1), generator=random)


def plain_loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Return a training step as most people write it."""

    def step(batch: torch.Tensor) -> None:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def take_turns(prepare: Callable[[str], Step], group: Group, training: Training) -> Turns:
    """Return the seconds of every step, which ``prepare`` makes for each system, and the size of the model."""
    steps = [prepare(name) for name in training.systems]
    seconds = interleave(steps, lambda number: make_batch(number, group, training), group, training.rounds)
    parameters = count_parameters(make_config(training.width), VOCABULARY)
    return Turns(parameters, dict(zip(training.systems, seconds, strict=True)))


def interleave(
    steps: Sequence[Step], make_input: Callable[[int], torch.Tensor], group: Group, rounds: int
) -> list[list[float]]:
    """Take one step of each system in every round, and return the seconds of the slowest rank by system and round.

    All ranks have met before a clock starts. Some rounds to warm up come first. Every second round takes the systems in
    reverse: the first one of a round finds its memory less often in the cache.
    """
    seconds = np.zeros((len(steps), _WARMUP + rounds))
    for number in range(_WARMUP + rounds):
        batch = make_input(number)
        for index, step in list(enumerate(steps))[:: -1 if number % 2 else 1]:
            group.barrier()
            began = time.perf_counter()
            step(batch)
            seconds[index, number] = time.perf_counter() - began
    slowest: list[list[float]] = group.all_gather(seconds[:, _WARMUP:].copy()).max(axis=0).tolist()
    return slowest
