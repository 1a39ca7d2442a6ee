"""Module buffers across lanes: every lane begins with the step's, and the step ends with one answer for all ranks.

Floating-point buffers (BatchNorm's averages) change by the mean of what the lanes changed, in the order of the lanes'
tree, so that one that no lane changes stays as it is; integers are lane 0's.
"""

from collections.abc import Sequence

import torch

from phalanx.buffers import Array
from phalanx.errors import ConfigError
from phalanx.parallel.flat import Bucket, Entry, lay_out
from phalanx.parallel.lanes import Deposit


def list_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The buffers that are part of the model's state, by name."""
    kept = model.state_dict(keep_vars=True).keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in kept]


class BufferLanes:
    """The buffers of a model, as one more bucket: ``rows`` and ``result`` lie in the exchange's memory."""

    def __init__(self, buffers: Sequence[tuple[str, torch.Tensor]]) -> None:
        for name, buffer in buffers:
            if buffer.is_complex():
                raise ConfigError(f"buffer {name} is complex, and only real ones are averaged: keep it as two")
        floats = [(name, buffer) for name, buffer in buffers if buffer.is_floating_point()]
        self._floats = [buffer for _, buffer in floats]
        self._integers = [buffer for _, buffer in buffers if not buffer.is_floating_point()]
        self._at_start: list[torch.Tensor] = []
        layout = lay_out([Entry(name, buffer.numel()) for name, buffer in floats], bucket_elements=2**62)
        self.bucket: Bucket | None = layout.buckets[0] if layout.buckets else None
        self.integer_count = sum(buffer.numel() for buffer in self._integers)

    def begin(self) -> None:
        """Keep what the buffers are at the start of a step."""
        self._at_start = [buffer.clone() for buffer in (*self._floats, *self._integers)]

    def restore(self) -> None:
        """Make the buffers what they were."""
        for buffer, value in zip((*self._floats, *self._integers), self._at_start, strict=True):
            buffer.copy_(value)

    def deposit(self, rows: torch.Tensor, deposit: Deposit) -> None:
        """Add what a lane has changed in the floating-point buffers to the rows."""
        assert self.bucket is not None
        for entry, place in zip(self.bucket.entries, self.bucket.places, strict=True):
            row = rows[deposit.row, place]
            change = (self._floats[entry] - self._at_start[entry]).reshape(-1)
            row.add_(change) if deposit.is_added else row.copy_(change)
            for left, right in deposit.merges:
                rows[left, place].add_(rows[right, place])

    def read_integers(self, out: Array) -> None:
        """Write lane 0's integers into a row of f64, which holds them exactly up to 2 ** 53."""
        start = 0
        for buffer in self._integers:
            out[start : start + buffer.numel()] = buffer.reshape(-1).cpu().numpy()
            start += buffer.numel()

    def apply(self, result: torch.Tensor | None, integers: Array) -> None:
        """Make the buffers what the step has made of them."""
        if self.bucket is not None and result is not None:
            for entry, place in zip(self.bucket.entries, self.bucket.places, strict=True):
                self._floats[entry].add_(result[place].view(self._floats[entry].shape))
        start = 0
        for buffer in self._integers:
            values = torch.from_numpy(integers[start : start + buffer.numel()].copy())
            buffer.copy_(values.view(buffer.shape).to(buffer.dtype))
            start += buffer.numel()
