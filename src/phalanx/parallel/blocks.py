"""The parameters as an optimizer sees them: cut into blocks, whose places do not depend on the number of ranks.

Vectorised code may round the tail of an array differently from its body. Blocks have the same tails wherever they are
updated.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from phalanx.errors import ConfigError
from phalanx.parallel.flat import Layout


class Leaf(NamedTuple):
    """A block as a parameter for an optimizer: a view of some elements of ``parameter``, which is called ``name``."""

    name: str
    parameter: torch.nn.Parameter
    block: torch.nn.Parameter


class Blocks:
    """The leaves of all blocks of a layout, and what an optimizer knows about them, by name."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: Layout) -> None:
        self._layout = layout
        self.leaves: list[Leaf] = []
        self._gradients: list[torch.Tensor] = []
        for block in layout.blocks:
            parameter, name = parameters[block.entry], layout.entries[block.entry].name
            if not parameter.is_contiguous():
                raise ConfigError(
                    f"{name} is not contiguous: assign parameter.data = parameter.data.contiguous() first"
                )
            view = torch.nn.Parameter(parameter.data.view(-1)[block.start : block.stop])
            self.leaves.append(Leaf(name, parameter, view))

    def bind(self, results: Sequence[torch.Tensor]) -> None:
        """Let every block find its gradient in its bucket's result, from now on."""
        for bucket, result in zip(self._layout.buckets, results, strict=True):
            self._gradients += [result[bucket.find(block)] for block in bucket.blocks]

    def set_gradients(self, is_used: Sequence[bool]) -> None:
        """Give every block its gradient; none, if nobody used its parameter, so that an optimizer passes it over."""
        for block, leaf, gradient in zip(self._layout.blocks, self.leaves, self._gradients, strict=True):
            leaf.block.grad = gradient if is_used[block.entry] else None

    def in_model_order(self) -> list[Leaf]:
        """The leaves, parameter after parameter, however these are spread over buckets."""
        places = [(block.entry, block.start) for block in self._layout.blocks]
        return [self.leaves[number] for number in sorted(range(len(places)), key=places.__getitem__)]

    def gather_state(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """What the optimizer keeps, as ``name.key``: shaped like the parameter, or a single value."""
        found: dict[str, torch.Tensor] = {}
        for block, leaf in zip(self._layout.blocks, self.leaves, strict=True):
            for key, value in optimizer.state.get(leaf.block, {}).items():
                tensor = torch.as_tensor(value)
                label = f"{leaf.name}.{key}"
                if tensor.shape == leaf.block.shape and tensor.ndim:
                    if label not in found:
                        found[label] = torch.empty_like(leaf.parameter, dtype=tensor.dtype)
                    found[label].view(-1)[block.start : block.stop] = tensor
                elif tensor.ndim == 0:
                    found[label] = tensor.clone()
                else:
                    raise ConfigError(
                        f"{label} is kept neither for each element nor once: use an element-wise optimizer"
                    )
        return found

    def scatter_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, torch.Tensor]) -> None:
        """Give the optimizer back what ``gather_state`` found; parameters that it does not know begin anew."""
        by_name: dict[str, dict[str, torch.Tensor]] = {}
        for label, tensor in state.items():
            name, _, key = label.rpartition(".")
            by_name.setdefault(name, {})[key] = tensor
        for name in by_name.keys() - {leaf.name for leaf in self.leaves}:
            raise ConfigError(
                f"the optimizer state has {name}, which this model has not: was it made with this config?"
            )
        on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
        for block, leaf in zip(self._layout.blocks, self.leaves, strict=True):
            cut = slice(block.start, block.stop)
            kept = {
                key: _cut(key, tensor, cut, leaf, on_device=on_device)
                for key, tensor in by_name.get(leaf.name, {}).items()
            }
            if kept:
                optimizer.state[leaf.block] = kept


def _cut(key: str, tensor: torch.Tensor, cut: slice, leaf: Leaf, *, on_device: bool) -> torch.Tensor:
    if tensor.ndim == 0 and (leaf.parameter.ndim or key == "step"):
        return tensor.to(leaf.block.device, copy=True) if on_device else tensor.clone()  # as torch's own loading does
    if tensor.shape != leaf.parameter.shape:
        raise ConfigError(f"the optimizer state of {leaf.name} has shape {tuple(tensor.shape)}, not its parameter's")
    return tensor.reshape(-1)[cut].to(leaf.block.device).clone()
