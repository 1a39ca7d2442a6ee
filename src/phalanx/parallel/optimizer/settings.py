"""An optimizer from a class and its settings, and the schedule of its learning rates."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from phalanx.errors import ConfigError
from phalanx.parallel.optimizer.leaf import Leaf

Settings = Mapping[str, Any]  # Any: what an optimizer takes
MakeOptimizer = Callable[[list[Leaf]], torch.optim.Optimizer]
GroupSettings = Callable[[str, torch.nn.Parameter], Settings]
"""Returns the settings in which a parameter differs from the others, by its name."""
Schedule = Callable[[int], float]
"""Returns the factor by which the learning rates are multiplied in a step."""


def choose_optimizer(
    optimizer: type[torch.optim.Optimizer] | MakeOptimizer, settings: Settings, groups: GroupSettings | None
) -> MakeOptimizer:
    """Return a function that makes the optimizer of some leaves.

    ``optimizer`` is a class, which gets ``settings`` and those of ``groups``, or such a function already.
    """
    if not isinstance(optimizer, type):
        if settings or groups:
            given = ", ".join([*settings, *(["groups"] if groups else [])])
            raise ConfigError(
                f"{given}: settings are for an optimizer class; set them in the function that makes yours"
            )
        return optimizer
    if not issubclass(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"{optimizer.__name__} is no optimizer: pass a class of torch.optim, or a function of leaves")
    kind = optimizer
    _check_known(kind, settings, "")

    def make(leaves: list[Leaf]) -> torch.optim.Optimizer:
        try:
            return kind(_group(kind, leaves, groups) if groups else [leaf.block for leaf in leaves], **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{kind.__name__} refuses its settings: {error}") from error

    return make


class ScheduledRates:
    """The learning rates of an optimizer, each its initial rate times the factor of a schedule."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        for group in optimizer.param_groups:
            if "lr" not in group:
                raise ConfigError(f"{type(optimizer).__name__} has no lr that a schedule could change: leave it out")
            group["initial_lr"] = group["lr"]  # within the group, where torch's schedulers keep it, so that it travels

    def set(self, step: int) -> None:
        """Set the rates of a step."""
        factor = self._schedule(step)
        if not isinstance(factor, int | float) or not math.isfinite(factor):
            raise ConfigError(
                f"the schedule returned {factor!r} for step {step}: return a factor for the learning rate"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor


def _group(kind: type[torch.optim.Optimizer], leaves: Sequence[Leaf], groups: GroupSettings) -> list[dict[str, Any]]:
    """Return a group for all leaves whose parameters have the same settings."""
    found: list[tuple[Settings, list[torch.nn.Parameter]]] = []
    for leaf in leaves:
        settings = groups(leaf.name, leaf.parameter)
        _check_known(kind, settings, f" for {leaf.name}")
        blocks = next((blocks for known, blocks in found if known == settings), None)
        if blocks is None:
            found.append((settings, blocks := []))
        blocks.append(leaf.block)
    return [{**settings, "params": blocks} for settings, blocks in found]


def _check_known(kind: type[torch.optim.Optimizer], settings: Settings, where: str) -> None:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"groups returned {settings!r}{where}: return a dict of settings, which may be empty")
    parameters = list(inspect.signature(kind).parameters.values())[1:]  # the first is what it updates
    known = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for name in settings:
        if name not in known and len(known) == len(parameters):
            raise ConfigError(f"{kind.__name__} has no setting {name}{where}: it has {', '.join(known)}")
