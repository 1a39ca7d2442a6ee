"""One rank of ``phalanx bench step``: takes the same steps in every system in turn, and times them."""

from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.bench.training.driver import Training, make_config
from phalanx.bench.training.step import StepSystem
from phalanx.bench.training.worker import Step, answer, gloo, make_model, plain_loop, read_command, take_turns
from phalanx.group import Group
from phalanx.parallel import DataParallel, Engine
from phalanx.train.model import loss


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    training, folder = read_command(Training)
    is_gloo_wanted = StepSystem.DDP_GLOO.value in training.systems
    with phalanx.connect(lanes=training.ranks) as group, gloo(group, folder, is_wanted=is_gloo_wanted):
        turns = take_turns(lambda name: _prepare(StepSystem(name), group, training), group, training)
        answer(turns, group, folder)


def _prepare(system: StepSystem, group: Group, training: Training) -> Step:
    """Return a step of this system with its own model and optimizer, which start equal in all systems."""
    model = make_model(make_config(training.width))
    make_optimizer = partial(torch.optim.AdamW, lr=1e-3, fused=training.is_fused)
    match system:
        case StepSystem.ENGINE:
            engine = Engine(model, loss, lambda leaves: make_optimizer([leaf.block for leaf in leaves]), group)
            return lambda batch: engine.step(lambda _: [batch])
        case StepSystem.DATA_PARALLEL:
            model = DataParallel(model, group)
        case StepSystem.DDP_GLOO:
            model = DistributedDataParallel(model)
        case StepSystem.NO_EXCHANGE:
            pass
    return plain_loop(model, make_optimizer(model.parameters()))


if __name__ == "__main__":
    main()
