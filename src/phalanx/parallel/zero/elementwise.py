"""Whether an optimizer can update a parameter block by block."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from phalanx.errors import ConfigError
from phalanx.parallel.reduction import Unit, parse

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer from groups of parameters."""

_STEPS = 3
_SIDE = 256  # some factor only what is larger than 128 each way
_PART = _SIDE * _SIDE // 4
_REFUSED = {
    torch.optim.LBFGS: "searches along a line through all parameters at once, so that no rank could take its part",
    torch.optim.SparseAdam: "is for sparse gradients, and only dense ones are averaged",
}


def check_class(optimizer_class: object) -> None:
    """Raise ConfigError unless this is a class of optimizers that can be sharded."""
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)):
        raise ConfigError(
            f"{optimizer_class!r} is no class of optimizers: pass one of torch.optim or your own subclass"
        )
    for refused, reason in _REFUSED.items():
        if issubclass(optimizer_class, refused):
            raise ConfigError(f"{optimizer_class.__name__} {reason}: use it without sharding, or another optimizer")


def choose_unit(
    unit: Unit | str | None,
    make: Make,
    groups: Iterable[Mapping[str, Any]],
    device: torch.device,
) -> Unit:
    """Return the unit that is asked for, or else blocks if the optimizer is element-wise, and whole parameters if not.

    ``groups`` has the settings of every group of parameters.
    """
    wanted = None if unit is None else parse(Unit, unit)
    if wanted in (Unit.PARAMETER, Unit.LAYER):
        return wanted
    different = {repr(each): each for each in groups}
    if all(is_elementwise(make, each, device) for each in different.values()):
        return Unit.BLOCK
    if wanted is Unit.BLOCK:
        name = type(make([{"params": [torch.nn.Parameter(torch.zeros(1, 1))]}])).__name__
        raise ConfigError(f"{name} needs whole parameters: leave unit out, or pass parameter or layer")
    return Unit.PARAMETER


def is_elementwise(make: Make, settings: Mapping[str, Any], device: torch.device) -> bool:
    """Return whether an update in blocks gives the same bits as an update of the whole, found by a trial."""
    random = torch.Generator().manual_seed(0)
    whole = torch.nn.Parameter(torch.randn(_SIDE, _SIDE, generator=random).to(device))
    parts = [torch.nn.Parameter(part.clone()) for part in whole.data.view(-1).split(_PART)]
    gradients = torch.randn(_STEPS, _SIDE, _SIDE, generator=random).to(device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # an optimizer that draws numbers is not to disturb others
        _update(make, settings, [whole], [[each] for each in gradients])
        try:
            _update(make, settings, parts, [each.view(-1).split(_PART) for each in gradients])
        except Exception:  # noqa: BLE001 - whatever it is: it does not do with pieces what it does with wholes
            return False
    return bool(torch.equal(torch.cat([part.data for part in parts]), whole.data.view(-1)))


def _update(
    make: Make,
    settings: Mapping[str, Any],
    parameters: list[torch.nn.Parameter],
    gradients: list[Any],  # Any: for each step, as many tensors as there are parameters
) -> None:
    optimizer = make([{**settings, "params": parameters}])
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
