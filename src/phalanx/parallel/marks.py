"""Seeing whether gradients are as the exchange left them: of a sharded one a rank has only its own pieces."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from phalanx.errors import ConfigError


@dataclass(slots=True)
class _Mark:
    gradient: torch.Tensor
    version: int


@cache
def count_scaler_changes(device: str) -> int:
    """How many changes in place torch says it made when a GradScaler has unscaled a gradient: tried out."""
    parameter = torch.nn.Parameter(torch.ones(1, device=device))
    parameter.grad = torch.ones_like(parameter)
    before = parameter.grad._version  # noqa: SLF001 - there is no public way
    scaler = torch.amp.GradScaler(device)
    scaler.scale(parameter)  # or it has no scale yet
    scaler.unscale_(torch.optim.SGD([parameter]))
    return int(parameter.grad._version) - int(before)  # noqa: SLF001


class Marks:
    """The sharded gradients of the last exchange, by name. Every change in place gives a tensor another version."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def clear(self) -> None:
        """Forget them: they were used up, or set to zero."""
        self._marks.clear()

    def forget(self, name: str) -> None:
        """Forget one of them."""
        self._marks.pop(name, None)

    def put(self, name: str, gradient: torch.Tensor) -> None:
        """Remember a gradient as it is now, changed by none but ourselves."""
        self._marks[name] = _Mark(gradient, gradient._version)  # noqa: SLF001 - there is no public way

    @contextmanager
    def allowing(self) -> Iterator[None]:
        """Allow what is changed in this block: it is done by all ranks alike."""
        before = {name: mark.gradient._version for name, mark in self._marks.items()}  # noqa: SLF001
        yield
        for name, version in before.items():
            self._marks[name].version += self._marks[name].gradient._version - version  # noqa: SLF001

    def check_empty(self, name: str, gradient: torch.Tensor) -> None:
        """Return unless a gradient, to which another was just added, is still that of the last exchange."""
        mark = self._marks.get(name)
        if mark and gradient is mark.gradient:
            raise ConfigError(
                f"{name} still has its part of the last mean, to which nothing can be added: call the optimizer's "
                "zero_grad() before, or add up micro-batches in no_sync()"
            )

    def check(self, name: str, gradient: torch.Tensor, changes: int) -> None:
        """Return if a gradient is that of the last exchange, and was changed in place so many times since."""
        mark = self._marks.get(name)
        if not mark:
            raise ConfigError(f"the gradient of {name} comes from no exchange since zero_grad(): call backward() first")
        if gradient is not mark.gradient or gradient._version != mark.version + changes:  # noqa: SLF001
            raise ConfigError(
                f"the gradient of {name} was changed after backward, but this rank has only its part of it: clip with "
                "model.clip_grad_norm_(max_norm) of DataParallel, and scale the loss and not the gradient"
            )
