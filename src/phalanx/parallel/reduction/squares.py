"""The sums of squares of means on a GPU: measured there chunk by chunk, and collected on the host."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from phalanx.buffers import Array
from phalanx.parallel.reduction.device_fold import add_squares, measure
from phalanx.parallel.reduction.layout import Layout
from phalanx.parallel.reduction.spans import plan_measuring


class Squares:
    """Measures the chunks of a reducer's buckets that this rank adds up, and writes into ``squares`` of the summary.

    However gradients have met, the same operations measure the same values, so the norm has the same bits.
    """

    def __init__(
        self, layout: Layout, added_here: Sequence[frozenset[int]], squares: Array, device: torch.device
    ) -> None:
        self._squares = squares
        self._device = device
        self._buckets = layout.buckets
        self._plans = [
            plan_measuring(bucket, () if bucket.is_buffer else added)
            for bucket, added in zip(layout.buckets, added_here, strict=True)
        ]
        lengths = [plan.norms for plan in self._plans]
        whole = torch.empty(sum(lengths), dtype=torch.float64, pin_memory=True)  # in one piece: each takes long to pin
        self._norms = whole.split(lengths)
        self._events = [torch.cuda.Event(blocking=True) for _ in self._plans]
        self._begun: deque[tuple[int, torch.Tensor, torch.Tensor]] = deque()

    def begin(self) -> None:
        """Forget what was not collected."""
        self._begun.clear()

    def measure(self, number: int, mean: torch.Tensor) -> None:
        """Begin to measure a bucket, on the present stream. Collect what is there of others."""
        plan = self._plans[number]
        if plan.chunks:
            norms = measure(mean, plan)
            collected = self._norms[number].view(norms.dtype)[: plan.norms]
            collected.copy_(norms, non_blocking=True)
            self._events[number].record()
            self._begun.append((number, mean, collected))
        while self._begun and self._events[self._begun[0][0]].query():
            self._collect(*self._begun.popleft())

    def finish(self) -> None:
        """Wait for all that was begun, and collect it."""
        while self._begun:
            self._events[self._begun[0][0]].synchronize()
            self._collect(*self._begun.popleft())

    def _collect(self, number: int, mean: torch.Tensor, norms: torch.Tensor) -> None:
        bucket, plan = self._buckets[number], self._plans[number]
        with np.errstate(over="ignore", invalid="ignore"):
            found = add_squares(norms.numpy(), plan.starts)
            for place in np.flatnonzero(~np.isfinite(found)):  # squares of large values need more room than f32 has
                values = mean[bucket.chunks[plan.chunks[place]]].double().cpu().numpy()
                found[place] = np.square(values).sum()
        self._squares[bucket.first_chunk + np.array(plan.chunks)] = found
