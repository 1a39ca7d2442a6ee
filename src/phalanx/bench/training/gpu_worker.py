"""One rank of ``phalanx bench gpu``: takes steps on a GPU that all ranks share, in every system in turn."""

import gc
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.bench.training.gpt import Gpt, loss
from phalanx.bench.training.gpu import GpuAnswer, GpuSystem, GpuTask
from phalanx.bench.training.worker import Step, answer, gloo, read_command
from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel import DataParallel, Engine

_WARMUP = 3


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    torch.utils.deterministic.fill_uninitialized_memory = False
    task, folder = read_command(GpuTask)
    if not torch.cuda.is_available():
        raise ConfigError("torch finds no GPU here: phalanx bench step measures on the CPU")
    device = torch.device("cuda", torch.cuda.current_device())
    seconds: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, int] = {}
    routes: dict[str, str] = {}
    with phalanx.connect(lanes=task.ranks) as group:
        with gloo(group, folder, is_wanted=GpuSystem.DDP_GLOO.value in task.systems):
            for _ in range(task.turns):
                for name in task.systems:
                    system = GpuSystem(name)
                    torch.use_deterministic_algorithms(system.is_exact)
                    step, routes[name] = _prepare(system, group, task, device)
                    seconds[name] += _take_steps(step, group, task, device)
                    free, total = torch.cuda.mem_get_info(device)
                    memory[name] = (total - free) // task.ranks
                    del step
                    _clear(group)
        parameters = sum(each.numel() for each in _make_model(task, torch.device("meta")).parameters())
        found = GpuAnswer(parameters, torch.cuda.get_device_name(device), dict(seconds), memory, routes)
        answer(found, group, folder)


def _prepare(system: GpuSystem, group: Group, task: GpuTask, device: torch.device) -> tuple[Step, str]:
    """Return a step of this system with its own model and optimizer, and which way its gradients go."""
    torch.manual_seed(0)
    model = _make_model(task, device)
    make_optimizer = partial(torch.optim.AdamW, lr=1e-4, fused=True)
    through_host = system in (GpuSystem.ENGINE_HOST, GpuSystem.DATA_PARALLEL_HOST)
    match system:
        case GpuSystem.ENGINE | GpuSystem.ENGINE_HOST:
            engine = Engine(
                model,
                loss,
                lambda leaves: make_optimizer([leaf.block for leaf in leaves]),
                group,
                through_host=through_host,
            )
            return lambda batch: engine.step(lambda _: [batch]), engine.explain()
        case GpuSystem.DATA_PARALLEL | GpuSystem.DATA_PARALLEL_HOST:
            wrapped = DataParallel(model, group, through_host=through_host)
            return _plain_loop(wrapped, make_optimizer(wrapped.parameters())), wrapped.explain()
        case GpuSystem.DDP_GLOO:
            model = DistributedDataParallel(model)
        case _:
            pass
    return _plain_loop(model, make_optimizer(model.parameters())), ""


def _make_model(task: GpuTask, device: torch.device) -> Gpt:
    with device:
        return Gpt(task.layers, task.width, task.vocabulary, task.tokens)


def _plain_loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(batch: torch.Tensor) -> None:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _take_steps(
    step: Callable[[torch.Tensor], object], group: Group, task: GpuTask, device: torch.device
) -> list[float]:
    """Return the seconds of the slowest rank for each step, after some steps to warm up."""
    seconds = np.zeros(_WARMUP + task.steps)
    for number in range(len(seconds)):
        random = torch.Generator().manual_seed(number * group.size + group.rank)
        batch = torch.randint(task.vocabulary, (task.batch, task.tokens + 1), generator=random).to(device)
        torch.cuda.synchronize(device)
        group.barrier()
        began = time.perf_counter()
        step(batch)
        torch.cuda.synchronize(device)
        seconds[number] = time.perf_counter() - began
    slowest: list[float] = group.all_gather(seconds[_WARMUP:].copy()).max(axis=0).tolist()
    return slowest


def _clear(group: Group) -> None:
    """Give the memory of the last system back, on all ranks, before one of them makes the next."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    group.barrier()


if __name__ == "__main__":
    main()
