"""Module buffers across lanes: every lane starts with the buffers of the step, and all ranks end with the same ones.

A floating-point buffer (BatchNorm's averages) changes by the mean of the lanes' changes, which are added up like
gradients. So a buffer that no lane changes keeps its value. Integer buffers get the values of lane 0.
"""

from collections.abc import Iterator, Sequence

import torch

from phalanx.buffers import Array
from phalanx.errors import ConfigError
from phalanx.parallel.reduction import ParameterSpec


def list_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the buffers that are part of the model's state, by name."""
    kept = model.state_dict(keep_vars=True).keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in kept]


class LaneBuffers:
    """The buffers of a model during a step."""

    def __init__(self, buffers: Sequence[tuple[str, torch.Tensor]]) -> None:
        for name, buffer in buffers:
            if buffer.is_complex():
                raise ConfigError(f"buffer {name} is complex, and only real ones are averaged: keep it as two")
        floats = [(name, buffer) for name, buffer in buffers if buffer.is_floating_point()]
        self.specs = [ParameterSpec(name, buffer.numel(), is_buffer=True) for name, buffer in floats]
        """The floating-point buffers, as the reducer sees them."""
        self._floats = [buffer for _, buffer in floats]
        self._integers = [buffer for _, buffer in buffers if not buffer.is_floating_point()]
        self._at_start: list[torch.Tensor] = []
        self.integer_count = sum(buffer.numel() for buffer in self._integers)

    def begin(self) -> None:
        """Remember the buffers at the start of a step."""
        self._at_start = [buffer.clone() for buffer in (*self._floats, *self._integers)]

    def restore(self) -> None:
        """Set the buffers to what they were at the start of the step."""
        for buffer, value in zip((*self._floats, *self._integers), self._at_start, strict=True):
            buffer.copy_(value)

    def changes(self) -> Iterator[torch.Tensor]:
        """Yield what a lane has changed in each floating-point buffer, in f32."""
        for buffer, value in zip(self._floats, self._at_start, strict=False):
            yield (buffer - value).float()

    def read_integers(self, out: Array) -> None:
        """Write the integers into a row of f64, which holds them exactly up to 2 ** 53."""
        start = 0
        for buffer in self._integers:
            out[start : start + buffer.numel()] = buffer.reshape(-1).cpu().numpy()
            start += buffer.numel()

    def apply(self, changes: Sequence[torch.Tensor], integers: Array) -> None:
        """Change the floating-point buffers by the mean of the lanes' changes, and set the integers."""
        for buffer, change in zip(self._floats, changes, strict=True):
            buffer.add_(change.view(buffer.shape))
        start = 0
        for buffer in self._integers:
            values = torch.from_numpy(integers[start : start + buffer.numel()].copy())
            buffer.copy_(values.view(buffer.shape).to(buffer.dtype))
            start += buffer.numel()
