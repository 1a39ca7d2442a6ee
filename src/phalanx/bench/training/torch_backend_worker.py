"""One rank of ``phalanx bench torch``: the same calls and training steps over our backend and over Gloo, in turn."""

import gc
from collections.abc import Callable

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import phalanx
import phalanx.torch
from phalanx.bench.training.driver import Training, make_config
from phalanx.bench.training.torch_backend import BACKENDS, BackendAnswer, BackendTask, BackendTimes
from phalanx.bench.training.worker import (
    VOCABULARY,
    Step,
    answer,
    gloo,
    interleave,
    make_batch,
    make_model,
    plain_loop,
    read_command,
)
from phalanx.group import Group
from phalanx.train.shapes import count_parameters


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    task, folder = read_command(BackendTask)
    with phalanx.connect() as group, gloo(group, folder, is_wanted=True):
        ours, theirs = (distributed.new_group(backend=backend) for backend in BACKENDS)
        groups = dict(zip(BACKENDS, (ours, theirs), strict=True))
        times = [_all_reduces(task, size, group, groups) for size in task.sizes]
        times.append(_training("ddp", task, group, groups, _ddp))
        times.append(_training("fsdp2", task, group, groups, _fsdp))
        answer(BackendAnswer(times), group, folder)
        gc.collect()  # no model may outlive its group


def _all_reduces(task: BackendTask, size: int, group: Group, groups: dict[str, object]) -> BackendTimes:
    tensor = torch.ones(size // 4)

    def make(over: object) -> Step:
        return lambda _: distributed.all_reduce(tensor, group=over)

    def fill(_: int) -> torch.Tensor:
        return tensor.fill_(group.rank + 1)

    rounds = task.rounds * (10 if size <= 1 << 16 else 1)
    seconds = interleave([make(over) for over in groups.values()], fill, group, rounds)
    return BackendTimes("all_reduce", size, dict(zip(groups, seconds, strict=True)))


def _training(
    what: str, task: BackendTask, group: Group, groups: dict[str, object], wrap: Callable[..., torch.nn.Module]
) -> BackendTimes:
    config = make_config(task.width)
    training = Training(
        systems=BACKENDS,
        ranks=group.size,
        rounds=task.steps,
        tokens=task.tokens,
        batch=1,
        width=task.width,
        is_fused=False,
    )
    steps = []
    for over in groups.values():
        model = wrap(make_model(config), over)
        steps.append(plain_loop(model, torch.optim.AdamW(model.parameters(), lr=1e-3)))
    seconds = interleave(steps, lambda number: make_batch(number, group, training), group, task.steps)
    return BackendTimes(what, 4 * count_parameters(config, VOCABULARY), dict(zip(groups, seconds, strict=True)))


def _ddp(model: torch.nn.Module, over: object) -> torch.nn.Module:
    return DistributedDataParallel(model, process_group=over)


def _fsdp(model: torch.nn.Module, over: object) -> torch.nn.Module:
    mesh = DeviceMesh.from_group(over, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


if __name__ == "__main__":
    main()
