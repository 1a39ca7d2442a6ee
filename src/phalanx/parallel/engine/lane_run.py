"""Computing lanes one after another: forward, backward, and each gradient into the reducer as soon as it is there."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from phalanx.buffers import Array
from phalanx.parallel.reduction import Reducer

Batch = Any  # what the caller's loss takes
Loss = Callable[[torch.nn.Module, Batch], "torch.Tensor | tuple[torch.Tensor, int | torch.Tensor]"]
"""Returns the mean loss of a batch, or its total loss and a count, for example the number of tokens."""


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """What a lane came to besides gradients: total loss and count, which parameters it used, and integer buffers."""

    total: torch.Tensor
    count: float
    used: Array
    integers: Array


class LaneRun:
    """Runs lanes of a model and puts their gradients into a reducer. Closing or dropping it removes its hooks."""

    reducer: Reducer
    """Where gradients go."""

    def __init__(self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._model = model
        self._parameters = parameters
        self._is_putting = False  # only in the last batch of a lane; before, gradients accumulate in .grad
        hooks = [
            parameter.register_post_accumulate_grad_hook(_make_hook(weakref.ref(self), number))
            for number, parameter in enumerate(parameters)
        ]
        self._remove_hooks = weakref.finalize(self, _remove, hooks)

    def begin(self) -> None:
        """Start a step and drop gradients left over from earlier backward passes."""
        self._is_putting = False
        for parameter in self._parameters:
            parameter.grad = None

    def run(self, loss: Loss, batches: Sequence[Batch], lane: int) -> tuple[torch.Tensor, float]:
        """Compute one lane, batch after batch, put its gradients into the reducer, and return total loss and count."""
        totals: list[torch.Tensor] = []
        count = 0.0
        for number, batch in enumerate(batches, 1):
            value, weight = split(loss(self._model, batch))
            count += float(weight)
            totals.append(value.detach())
            if number == len(batches):
                self.reducer.start_lane(lane, count)
                self._is_putting = True
            value.backward()
        self._is_putting = False
        for number in self.reducer.missing():
            if number < len(self._parameters):  # else it is a buffer
                self._put(number)
        return torch.stack(totals).sum(), count

    def find_non_finite(self, loss: Loss, batches: Sequence[Batch]) -> int | None:
        """Compute a lane again, and return the first parameter in backward whose gradient is not finite.

        Returns -1 if only the loss is not finite, and None if all values are finite.
        """
        found = None
        for batch in batches:
            value, _ = split(loss(self._model, batch))
            value.backward()
            found = found if torch.isfinite(value) else -1
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                found = number  # backward begins with the last
            parameter.grad = None
        return found

    def close(self) -> None:
        """Take the hooks off the parameters. Closing twice is harmless."""
        self._remove_hooks()

    def arrive(self, number: int) -> None:
        """Put the gradient that a parameter has just got into the reducer. The hook calls this during backward."""
        if self._is_putting:
            self._put(number)

    def _put(self, number: int) -> None:
        self.reducer.put(number, self._parameters[number].grad)
        self._parameters[number].grad = None


def _make_hook(run: "weakref.ref[LaneRun]", number: int) -> Callable[[torch.Tensor], None]:
    """Return a hook that does not keep the run alive."""

    def hook(_: torch.Tensor) -> None:
        if (found := run()) is not None:
            found.arrive(number)

    return hook


def _remove(hooks: Sequence[Any]) -> None:  # Any: torch is untyped
    for hook in hooks:
        hook.remove()


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into eval mode for the duration, then restore each module's own mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def split(loss: "torch.Tensor | tuple[torch.Tensor, int | torch.Tensor]") -> tuple[torch.Tensor, int | torch.Tensor]:
    """Return a loss as a total and its count; a mean counts once."""
    return loss if isinstance(loss, tuple) else (loss, 1)
