"""One rank of ``phalanx bench hosts``: it moves to its host, then does the same work in every system, in rounds."""

import os
from functools import partial

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.bench.hosts.plan import BUFFER_BYTES, LAYERS, WIDTH, HostsTask, HostsTimes, HostSystem
from phalanx.bench.training.worker import Step, answer, gloo, interleave, read_command
from phalanx.group import Group
from phalanx.launch.env import read_launch
from phalanx.launch.network import enter
from phalanx.launch.network_commands import INTERFACE
from phalanx.parallel import DataParallel, Engine

_BATCH = 1  # the exchange is measured; arithmetic would only hide it


def main() -> None:
    """Measure what the command line asks for."""
    task, folder = read_command(HostsTask)
    launch = read_launch()
    assert launch is not None
    assert launch.rank is not None
    enter(task.namespaces[launch.rank // task.ranks])
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    torch.set_num_threads(1)
    is_gloo_wanted = any(system is system.gloo for system in task.systems)
    with (
        phalanx.connect(lanes=launch.size) as group,
        gloo(group, folder, is_wanted=is_gloo_wanted),
    ):
        seconds = interleave(
            [_prepare(system, group) for system in task.systems], partial(_make_batch, group), group, task.rounds
        )
        answer(HostsTimes(dict(zip(task.systems, seconds, strict=True))), group, folder)


def _prepare(system: HostSystem, group: Group) -> Step:
    """Return a step of this system, over a model or a buffer of its own."""
    match system:
        case HostSystem.ENGINE:
            engine = Engine(
                _make_model(), _loss, lambda leaves: torch.optim.SGD([leaf.block for leaf in leaves], lr=1e-3), group
            )
            return lambda batch: engine.step(lambda _: [batch])
        case HostSystem.DATA_PARALLEL:
            return _plain_step(DataParallel(_make_model(), group))
        case HostSystem.DATA_PARALLEL_BF16:
            return _plain_step(DataParallel(_make_model(), group, wire="bf16"))
        case HostSystem.DDP_GLOO:
            return _plain_step(DistributedDataParallel(_make_model()))
        case HostSystem.ALL_REDUCE:
            array = np.full(BUFFER_BYTES // 4, 0, np.float32)
            return lambda _: group.all_reduce(array)
        case HostSystem.ALL_REDUCE_GLOO:
            tensor = torch.full((BUFFER_BYTES // 4,), 0.0)
            return lambda _: distributed.all_reduce(tensor)


def _make_model() -> torch.nn.Module:
    """Return several layers, so that gradients of the last can travel while those of the first are computed."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def _make_batch(group: Group, number: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(number * group.size + group.rank)
    return torch.randn(_BATCH, WIDTH, generator=random)


def _loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def _plain_step(model: torch.nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> None:
        _loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
