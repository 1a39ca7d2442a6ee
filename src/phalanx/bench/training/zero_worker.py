"""One rank of ``phalanx bench zero``: takes the same steps in every system in turn, and times them."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.bench.training.driver import Training, make_config
from phalanx.bench.training.worker import Step, answer, gloo, make_model, plain_loop, read_command, take_turns
from phalanx.bench.training.zero import ZeroSystem
from phalanx.group import Group
from phalanx.parallel import DataParallel, ZeroOptimizer
from phalanx.train.config import ModelConfig


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    training, folder = read_command(Training)
    is_gloo_wanted = ZeroSystem.TORCH_ZERO.value in training.systems
    config = make_config(training.width)

    def make_step(name: str) -> Step:
        return plain_loop(*prepare(ZeroSystem(name), group, config, is_fused=training.is_fused))

    with phalanx.connect() as group, gloo(group, folder, is_wanted=is_gloo_wanted):
        answer(take_turns(make_step, group, training), group, folder)


def prepare(
    system: ZeroSystem, group: Group, config: ModelConfig, *, is_fused: bool
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer for this system. They start equal in all systems."""
    model = make_model(config)
    model = DistributedDataParallel(model) if system is ZeroSystem.TORCH_ZERO else DataParallel(model, group)
    adamw = torch.optim.AdamW
    match system:
        case ZeroSystem.ZERO:
            return model, ZeroOptimizer(model.parameters(), adamw, group=group, lr=1e-3, fused=is_fused)
        case ZeroSystem.FULL:
            return model, adamw(model.parameters(), lr=1e-3, fused=is_fused)
        case ZeroSystem.TORCH_ZERO:
            return model, ZeroRedundancyOptimizer(model.parameters(), adamw, lr=1e-3, fused=is_fused)


if __name__ == "__main__":
    main()
