"""Bundles: a lane whose gradient was not finite, saved with all that is needed to compute it again on one worker."""

from dataclasses import dataclass
from pathlib import Path

import torch

from phalanx.errors import ConfigError, NonFiniteGradient
from phalanx.parallel import seed_of
from phalanx.train.checkpoint import BundleFacts, Checkpoint, load, parse_facts, save
from phalanx.train.config_text import format_config
from phalanx.train.loop import Trainer, choose_device, make_loss, make_model
from phalanx.train.rundir import RunDir


def write_bundle(run: RunDir, trainer: Trainer, error: NonFiniteGradient) -> Path:
    """Save the weights and the lane's batches, and return the folder."""
    assert error.lane is not None, "only a lane can be repeated"
    batches = trainer.lanes.batches(error.step, error.lane)
    facts = {
        "config": format_config(trainer.lanes.config),
        "vocabulary": trainer.lanes.corpus.vocabulary,
        "lane": error.lane,
        "parameter": error.parameter,
        "samples": list(error.samples),
    }
    files = {
        "model": trainer.engine.model.state_dict(),
        "batches": {str(number): batch for number, batch in enumerate(batches)},
    }
    return save(run.halts, Checkpoint(error.step, files, facts))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of computing a lane again: the loss of each batch, and which gradients are not finite."""

    step: int
    lane: int
    samples: tuple[int, ...]
    losses: tuple[float, ...]
    parameters: dict[str, tuple[int, int]]
    """For each parameter with elements that are not finite: how many, and how many elements it has."""


def reproduce(bundle: Path) -> Finding:
    """Compute the lane again exactly as the run computed it."""
    if not bundle.name.startswith("step-"):
        raise ConfigError(f"{bundle} is not a bundle: name a folder in the halts of a run")
    found = load(bundle)
    facts = parse_facts(found.facts)
    if not isinstance(facts, BundleFacts):
        raise ConfigError(f"{bundle} is a checkpoint, not a bundle: name a folder in the halts of a run")
    config = facts.parse_config()
    device = choose_device(config.run.device)
    torch.use_deterministic_algorithms(device.type == "cuda")
    torch.set_num_threads(config.run.threads_per_worker)
    model = make_model(config, facts.vocabulary, device)
    model.load_state_dict(found.files["model"])
    compute = make_loss(config, device)
    torch.manual_seed(seed_of(config.train.seed, found.step, facts.lane))
    losses = []
    for number in range(len(found.files["batches"])):
        total, count = compute(model, found.files["batches"][str(number)].to(device))
        total.backward()
        losses.append(total.item() / count)
    bad = {
        name: (int((~torch.isfinite(parameter.grad)).sum()), parameter.numel())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
    }
    return Finding(found.step, facts.lane, facts.samples, tuple(losses), bad)
