"""One rank of ``phalanx bench step``: takes the same steps in every system, in turn, and notes how long they take."""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.cli.bench_step_plan import StepSystem, make_config, rows
from phalanx.group import Group
from phalanx.parallel import DataParallel, Engine
from phalanx.train.model import Transformer, count_parameters, loss

Step = Callable[[torch.Tensor], object]

_VOCABULARY = 256
_WARMUP = 3


def main() -> None:
    """Measure what the command line names; rank 0 writes the figures to the file that it names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", type=lambda text: [StepSystem(name) for name in text.split(",")], required=True)
    for name in ("--ranks", "--rounds", "--tokens", "--batch", "--width"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--meeting", required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with phalanx.connect(lanes=asked.ranks) as group, _gloo(group, asked.systems, asked.meeting):
        steps = {system: _prepare(system, group, asked) for system in asked.systems}
        seconds = _take_turns(steps, group, asked)
        if group.rank == 0:
            parameters = count_parameters(make_config(asked.width), _VOCABULARY)
            asked.out.write_bytes(msgspec.json.encode(rows(seconds, group.size, parameters)))


def _take_turns(
    steps: Mapping[StepSystem, Step], group: Group, asked: argparse.Namespace
) -> dict[StepSystem, list[float]]:
    """The seconds of the slowest rank, step by step. All ranks have met before a clock starts."""
    seconds = np.zeros((len(steps), _WARMUP + asked.rounds))
    for number in range(_WARMUP + asked.rounds):
        random = torch.Generator().manual_seed(number * group.size + group.rank)
        batch = torch.randint(_VOCABULARY, (asked.batch, asked.tokens + 1), generator=random)
        for index, step in enumerate(steps.values()):
            group.barrier()
            began = time.perf_counter()
            step(batch)
            seconds[index, number] = time.perf_counter() - began
    slowest = group.all_gather(seconds[:, _WARMUP:].copy()).max(axis=0)
    return dict(zip(steps, slowest.tolist(), strict=True))


def _prepare(system: StepSystem, group: Group, asked: argparse.Namespace) -> Step:
    """A step of this system, over a model and an optimizer of its own; they are alike in all systems."""
    torch.manual_seed(0)
    model = Transformer(make_config(asked.width), _VOCABULARY)
    make_optimizer = partial(torch.optim.AdamW, lr=1e-3, fused=asked.fused)
    match system:
        case StepSystem.ENGINE:
            engine = Engine(model, loss, lambda leaves: make_optimizer([leaf.block for leaf in leaves]), group)
            return lambda batch: engine.step(lambda _: [batch])
        case StepSystem.DATA_PARALLEL:
            return _plain_loop(DataParallel(model, group), make_optimizer)
        case StepSystem.DDP_GLOO:
            return _plain_loop(DistributedDataParallel(model), make_optimizer)
        case StepSystem.NO_EXCHANGE:
            return _plain_loop(model, make_optimizer)


def _plain_loop(model: torch.nn.Module, make_optimizer: Callable[..., torch.optim.Optimizer]) -> Step:
    optimizer = make_optimizer(model.parameters())

    def step(batch: torch.Tensor) -> None:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def _gloo(group: Group, systems: list[StepSystem], meeting: str) -> Iterator[None]:
    if StepSystem.DDP_GLOO not in systems:
        yield
        return
    store = distributed.FileStore(meeting, group.size)
    distributed.init_process_group("gloo", store=store, rank=group.rank, world_size=group.size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
