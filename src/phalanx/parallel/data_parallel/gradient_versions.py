"""Noticing that gradients were changed since their exchange: torch counts every change in place of a tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from phalanx.errors import ConfigError


@dataclass(slots=True)
class _Version:
    gradient: torch.Tensor
    number: int
    is_sharded: bool


@cache
def count_scaler_changes(device: str) -> int:
    """Return how many changes in place torch counts when a GradScaler unscales a gradient: tried out."""
    parameter = torch.nn.Parameter(torch.ones(1, device=device))
    parameter.grad = torch.ones_like(parameter)
    before = parameter.grad._version  # noqa: SLF001 - there is no public way
    scaler = torch.amp.GradScaler(device)
    scaler.scale(parameter)  # or it has no scale yet
    scaler.unscale_(torch.optim.SGD([parameter]))
    return int(parameter.grad._version) - int(before)  # noqa: SLF001


class GradientVersions:
    """The gradients of the last exchange, by name, each with its version then."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}

    def clear(self) -> None:
        """Forget all gradients: they were used up, or set to zero."""
        self._versions.clear()

    def forget(self, name: str) -> None:
        """Forget one gradient."""
        self._versions.pop(name, None)

    def put(self, name: str, gradient: torch.Tensor, *, is_sharded: bool) -> None:
        """Remember a gradient as it is now; of a sharded one this rank has only its own blocks."""
        self._versions[name] = _Version(gradient, gradient._version, is_sharded)  # noqa: SLF001 - there is no public way

    @contextmanager
    def allowing(self) -> Iterator[None]:
        """Allow the changes made in this block: all ranks make them alike."""
        before = {name: each.gradient._version for name, each in self._versions.items()}  # noqa: SLF001
        yield
        for name, number in before.items():
            self._versions[name].number += self._versions[name].gradient._version - number  # noqa: SLF001

    def are_unchanged(self, gradients: dict[str, torch.Tensor]) -> bool:
        """Return whether these gradients are all those of the last exchange, and none was changed since."""
        return gradients.keys() == self._versions.keys() and all(
            gradient is self._versions[name].gradient and gradient._version == self._versions[name].number  # noqa: SLF001
            for name, gradient in gradients.items()
        )

    def check_empty(self, name: str, gradient: torch.Tensor) -> None:
        """Raise ConfigError if another gradient was just added to a sharded one of the last exchange."""
        version = self._versions.get(name)
        if version and version.is_sharded and gradient is version.gradient:
            raise ConfigError(
                f"{name} still has its part of the last mean, to which nothing can be added: call the optimizer's "
                "zero_grad() before, or add up micro-batches in no_sync()"
            )

    def check(self, name: str, gradient: torch.Tensor, changes: int) -> None:
        """Raise ConfigError unless a gradient is that of the last exchange, changed in place so many times since."""
        version = self._versions.get(name)
        if not version:
            raise ConfigError(f"the gradient of {name} comes from no exchange since zero_grad(): call backward() first")
        if gradient is not version.gradient or gradient._version != version.number + changes:  # noqa: SLF001
            raise ConfigError(
                f"the gradient of {name} was changed after backward, but this rank has only its part of it: clip with "
                "model.clip_grad_norm_(max_norm) of DataParallel, and scale the loss and not the gradient"
            )
