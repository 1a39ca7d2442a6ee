"""Computing lanes one after another: forward, backward, and each gradient into the reducer as soon as it is there."""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from phalanx.buffers import Array
from phalanx.parallel.engine.buffers import LaneBuffers
from phalanx.parallel.engine.step_exchange import StepExchange
from phalanx.parallel.reduction import seed_of
from phalanx.telemetry import Activity

Batch = Any  # what the caller's loss takes
Loss = Callable[[torch.nn.Module, Batch], "torch.Tensor | tuple[torch.Tensor, int | torch.Tensor]"]
"""Returns the mean loss of a batch, or its total loss and a count, for example the number of tokens."""
Batches = Callable[[int], Sequence[Batch]]
"""Returns the batches of a lane in this step. It must return the same batches on every rank."""


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """What a lane came to besides gradients: total loss and count, which parameters it used, and integer buffers."""

    total: torch.Tensor
    count: float
    used: Array
    integers: Array


class LaneRun:
    """Computes lanes of a model and puts their gradients into the reducer of the present exchange.

    A lane draws its random numbers from ``seed``, the step and its own number. It begins with the buffers of the step,
    and so does the next one. Closing or dropping a run removes its hooks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        parameters: Sequence[torch.nn.Parameter],
        buffers: LaneBuffers,
        exchange: StepExchange,
        seed: int,
    ) -> None:
        self._model = model
        self._loss = loss
        self._parameters = parameters
        self._buffers = buffers
        self._exchange = exchange
        self._seed = seed
        device = parameters[0].device
        self._devices = [device] if device.type == "cuda" else []
        self._is_putting = False  # only in the last batch of a lane; before, gradients accumulate in .grad
        hooks = [
            parameter.register_post_accumulate_grad_hook(_make_hook(weakref.ref(self), number))
            for number, parameter in enumerate(parameters)
        ]
        self._remove_hooks = weakref.finalize(self, _remove, hooks)

    @contextmanager
    def forking_random(self) -> Iterator[None]:
        """Restore torch's own random numbers after lanes have been computed in this block."""
        with torch.random.fork_rng(self._devices):
            yield

    def begin(self) -> None:
        """Start a step and drop gradients left over from earlier backward passes."""
        self._is_putting = False
        self._buffers.begin()
        for parameter in self._parameters:
            parameter.grad = None

    def run(self, step: int, lane: int, batches: Batches) -> LaneOutcome:
        """Compute one lane, and put its gradients and its changes of buffers into the reducer."""
        reducer = self._exchange.reducer
        torch.manual_seed(seed_of(self._seed, step, lane))
        used = reducer.summary.used.copy()
        try:
            began_ns = time.monotonic_ns()
            loaded = batches(lane)
            self._exchange.recorder.record(Activity.DATA, began_ns, lane)
            total, count = self._run_batches(lane, loaded)
            integers = np.zeros(self._buffers.integer_count)
            self._buffers.read_integers(integers)
            for number, change in enumerate(self._buffers.changes(), len(self._parameters)):
                reducer.put(number, change)
        finally:
            self._buffers.restore()
        return LaneOutcome(total, count, reducer.summary.used - used, integers)

    def find_non_finite(self, step: int, lane: int, batches: Batches) -> int | None:
        """Compute a lane again, and return the first parameter in backward whose gradient is not finite.

        Returns -1 if only the loss is not finite, and None if all values are finite.
        """
        torch.manual_seed(seed_of(self._seed, step, lane))
        found = None
        for batch in batches(lane):
            value, _ = _split(self._loss(self._model, batch))
            value.backward()
            found = found if torch.isfinite(value) else -1
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                found = number  # backward begins with the last
            parameter.grad = None
        self._buffers.restore()
        return found

    def evaluate(self, lane: int, batches: Batches) -> tuple[float, float]:
        """Return the total loss and the count of a lane in eval mode."""
        total = count = 0.0
        with torch.no_grad(), _evaluating(self._model):
            for batch in batches(lane):
                value, weight = _split(self._loss(self._model, batch))
                total, count = total + float(value), count + float(weight)
        return total, count

    def close(self) -> None:
        """Take the hooks off the parameters. Closing twice is harmless."""
        self._remove_hooks()

    def arrive(self, number: int) -> None:
        """Put the gradient that a parameter has just got into the reducer. The hook calls this during backward."""
        if self._is_putting:
            self._put(number)

    def _run_batches(self, lane: int, batches: Sequence[Batch]) -> tuple[torch.Tensor, float]:
        """Compute a lane, batch after batch, and return total loss and count. Gradients leave in the last batch."""
        reducer, recorder = self._exchange.reducer, self._exchange.recorder
        totals: list[torch.Tensor] = []
        count = 0.0
        for number, batch in enumerate(batches, 1):
            began_ns = time.monotonic_ns()
            value, weight = _split(self._loss(self._model, batch))
            count += float(weight)
            totals.append(value.detach())
            recorder.record(Activity.FORWARD, began_ns, lane)
            if number == len(batches):
                reducer.start_lane(lane, count)
                self._is_putting = True
            began_ns = time.monotonic_ns()
            value.backward()
            recorder.record(Activity.BACKWARD, began_ns, lane)
        self._is_putting = False
        for number in reducer.missing():
            if number < len(self._parameters):  # else it is a buffer
                self._put(number)
        return torch.stack(totals).sum(), count

    def _put(self, number: int) -> None:
        self._exchange.reducer.put(number, self._parameters[number].grad)
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
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into eval mode for the duration, then restore each module's own mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def _split(loss: "torch.Tensor | tuple[torch.Tensor, int | torch.Tensor]") -> tuple[torch.Tensor, int | torch.Tensor]:
    """Return a loss as a total and its count; a mean counts once."""
    return loss if isinstance(loss, tuple) else (loss, 1)
