"""Computing lanes: forward and backward of one lane after another, with gradients put into rows as they come."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.errors import ConfigError
from phalanx.parallel.flat import Layout
from phalanx.parallel.lanes import Deposit
from phalanx.parallel.slots import Slot

Batch = Any  # what the caller's loss takes
Loss = Callable[[torch.nn.Module, Batch], "torch.Tensor | tuple[torch.Tensor, int | torch.Tensor]"]
"""The mean loss of a batch, or its total loss and what that is the total of, for example the number of tokens."""


class LaneRun:
    """Runs lanes of a model, and calls ``on_bucket`` when the last lane's gradients have filled a bucket.

    Buckets are filled in any order, but leave in the order of the layout. Gradients are added up in the slots' rows;
    if ``is_direct``, there is only one lane, and a bucket's gradients are handed over as they are.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        layout: Layout,
        slots: Sequence[Slot],
        on_bucket: Callable[[int, Mapping[int, torch.Tensor]], None],
        *,
        is_direct: bool,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._layout = layout
        self._slots = slots
        self._on_bucket = on_bucket
        self._is_direct = is_direct
        self._held: list[dict[int, torch.Tensor]] = []
        self._place = {
            entry: (number, place)
            for number, bucket in enumerate(layout.buckets)
            for entry, place in zip(bucket.entries, bucket.places, strict=True)
        }
        self._deposit: Deposit | None = None  # None: gradients stay where they are
        self._is_last = False
        self._missing: list[set[int]] = []
        self._left = 0
        self.used = [0] * len(parameters)
        for entry, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._make_hook(entry))

    def begin(self) -> None:
        """Begin a step; what another backward has left is none of it."""
        self._left = 0
        self.used = [0] * len(self._parameters)
        self._deposit = None
        for parameter in self._parameters:
            parameter.grad = None

    def run(
        self,
        loss: Loss,
        batches: Sequence[Batch],
        deposit: Deposit,
        on_count: Callable[[float], None],
        *,
        is_last: bool,
    ) -> torch.Tensor:
        """Compute one lane, batch after batch, deposit its gradient, and return its total loss.

        ``on_count`` is told what that is the total of, before the first bucket can leave.
        """
        self._is_last = is_last
        self._missing = [set(bucket.entries) for bucket in self._layout.buckets]
        self._held = [{} for _ in self._layout.buckets]
        totals: list[torch.Tensor] = []
        count = 0.0
        for number, batch in enumerate(batches, 1):
            value, weight = split(loss(self._model, batch))
            count += float(weight)
            totals.append(value.detach())
            if number == len(batches):
                on_count(count)
                self._deposit = deposit
            value.backward()
        self._deposit_missing(deposit)
        return torch.stack(totals).sum()

    def find_non_finite(self, loss: Loss, batches: Sequence[Batch]) -> int | None:
        """Compute a lane only to look at it: the parameter whose gradient is the first not to be finite in backward.

        -1 if only the loss is not finite, None if all is well.
        """
        found = None
        for batch in batches:
            value, _ = split(loss(self._model, batch))
            value.backward()
            found = found if torch.isfinite(value) else -1
        for entry, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                found = entry  # backward begins with the last
            parameter.grad = None
        return found

    def _make_hook(self, entry: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if self._deposit is not None:
                self._put(entry, parameter.grad, self._deposit)
                parameter.grad = None
                self.used[entry] += 1

        return hook

    def _put(self, entry: int, gradient: torch.Tensor | None, deposit: Deposit) -> None:
        """Store or add a gradient; a missing one counts as zeros, which are added too: they turn -0 into 0."""
        number, place = self._place[entry]
        if entry not in self._missing[number]:
            name = self._layout.entries[entry].name
            raise ConfigError(f"{name} got two gradients in one backward: checkpoint it with use_reentrant=False")
        if self._is_direct:
            self._held[number][entry] = torch.zeros_like(self._parameters[entry]) if gradient is None else gradient
        else:
            self._add(self._slots[number].rows[:, place], gradient, deposit)
        self._missing[number].discard(entry)
        if self._is_last:
            self._let_leave()

    def _add(self, rows: torch.Tensor, gradient: torch.Tensor | None, deposit: Deposit) -> None:
        row = rows[deposit.row]
        if gradient is None:
            row.add_(0.0) if deposit.is_added else row.zero_()
        elif deposit.is_added:
            row.add_(gradient.view(-1) if gradient.is_contiguous() else gradient.reshape(-1))
        else:
            row.view(gradient.shape).copy_(gradient)
        for left, right in deposit.merges:
            rows[left].add_(rows[right])

    def _let_leave(self) -> None:
        while self._left < len(self._missing) and not self._missing[self._left]:
            held, self._held[self._left] = self._held[self._left], {}
            self._on_bucket(self._left, held)
            self._left += 1

    def _deposit_missing(self, deposit: Deposit) -> None:
        """Deposit what backward did not reach in the last batch: what earlier batches left, or zeros."""
        self._deposit = None
        for missing in self._missing:
            for entry in sorted(missing):
                gradient = self._parameters[entry].grad
                self.used[entry] += gradient is not None
                self._put(entry, gradient, deposit)
                self._parameters[entry].grad = None


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Have all modules evaluate meanwhile, and then do again what each did before."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def split(loss: "torch.Tensor | tuple[torch.Tensor, int | torch.Tensor]") -> tuple[torch.Tensor, int | torch.Tensor]:
    """A loss as a total and its count; a mean counts once."""
    return loss if isinstance(loss, tuple) else (loss, 1)
