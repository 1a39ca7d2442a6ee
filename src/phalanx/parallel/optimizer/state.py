"""The state of an optimizer as labelled tensors: of whole parameters, or of spans of their elements.

Labels name parameters, so a group of any size can load the state that another saved.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from phalanx.checkpoint import Label, locate, parse_label
from phalanx.errors import ConfigError
from phalanx.parallel.optimizer.leaf import Kept, Leaf

Labelled = Mapping[str, torch.Tensor]


def gather(kept: Kept, leaves: Sequence[Leaf], *, is_joined: bool = True) -> dict[str, torch.Tensor]:
    """Return the state by label: ``name.key``, shaped like the parameter, if this rank has all of it, else spans of it.

    If ``is_joined``, the leaves that make up a whole parameter are copied into one tensor. A value that the optimizer
    keeps once, and not for each element, is always ``name.key``.
    """
    here: Counter[str] = Counter()
    for leaf in leaves:
        here[leaf.name] += leaf.block.numel()
    found: dict[str, torch.Tensor] = {}
    for leaf in leaves:
        is_all_here = is_joined and here[leaf.name] == leaf.parameter.numel()
        for key, value in kept.get(leaf.block, {}).items():
            if value is not None:
                _keep(found, leaf, key, to_tensor(value), is_all_here=is_all_here)
    return found


def to_tensor(value: Any) -> torch.Tensor:  # Any: a tensor or a number
    """Return a value of an optimizer's state as a tensor, with all its bits."""
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def from_tensor(tensor: torch.Tensor) -> Any:  # Any: a tensor or a number
    """Return the value that ``to_tensor`` was given. A single i64 becomes an int: torch's optimizers count in f32."""
    return tensor.item() if tensor.ndim == 0 and tensor.dtype is torch.int64 else tensor


def scatter(
    labelled: Labelled, leaves: Sequence[Leaf], *, on_device: bool
) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
    """Return the state of these leaves, from the state that ``gather`` returned on all ranks of a group of any size.

    A leaf whose parameter has no state gets none. Values that are kept once stay on the CPU, unless the optimizer wants
    them ``on_device``.
    """
    by_name: dict[str, dict[str, list[Label]]] = {}
    for label in map(parse_label, labelled):
        by_name.setdefault(label.name, {}).setdefault(label.key, []).append(label)
    return {
        leaf.block: {
            key: _cut(leaf, labels, labelled, on_device=on_device) for key, labels in by_name[leaf.name].items()
        }
        for leaf in leaves
        if leaf.name in by_name
    }


def wants_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer keeps its single values on the device."""
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)


def check_names(labelled: Labelled, names: Sequence[str]) -> None:
    """Raise ConfigError if the state has a parameter that is not among these names."""
    for name in {parse_label(text).name for text in labelled} - set(names):
        raise ConfigError(f"the optimizer state has {name}, which this model has not: was it made with this config?")


def _keep(found: dict[str, torch.Tensor], leaf: Leaf, key: str, tensor: torch.Tensor, *, is_all_here: bool) -> None:
    label = Label(leaf.name, key)
    if tensor.shape != leaf.block.shape or not tensor.ndim:
        if tensor.ndim and leaf.block.shape != leaf.parameter.shape:
            raise ConfigError(f"{label} is kept neither for each element nor once: use an element-wise optimizer")
        found[str(label)] = tensor
    elif leaf.is_whole:
        found[str(label)] = tensor.view(leaf.parameter.shape)
    elif is_all_here:
        if str(label) not in found:
            found[str(label)] = torch.empty_like(leaf.parameter, dtype=tensor.dtype)
        found[str(label)].view(-1)[leaf.start : leaf.stop] = tensor
    else:
        found[str(label._replace(span=(leaf.start, leaf.stop)))] = tensor


def _cut(leaf: Leaf, labels: Sequence[Label], labelled: Labelled, *, on_device: bool) -> torch.Tensor:
    """Return the state of a leaf under one key: its elements, or the value that is kept once."""
    spans = [label for label in labels if label.span]
    if not spans:
        return _cut_whole(leaf, labels[0], labelled[str(labels[0])], on_device=on_device)
    found = torch.empty_like(leaf.block, dtype=labelled[str(spans[0])].dtype)
    flat = found.view(-1)
    what = str(spans[0]._replace(span=None))
    for place in locate(slice(leaf.start, leaf.stop), [label.span for label in spans if label.span], what):
        flat[place.target] = labelled[str(spans[place.number])][place.source].to(flat.device)
    return found


def _cut_whole(leaf: Leaf, label: Label, tensor: torch.Tensor, *, on_device: bool) -> torch.Tensor:
    if tensor.ndim == 0 and (leaf.parameter.ndim or label.key == "step"):
        # As torch's own loading does.
        return from_tensor(tensor.to(leaf.block.device, copy=True) if on_device else tensor.clone())
    if tensor.shape == leaf.parameter.shape:
        flat = tensor.reshape(-1)[leaf.start : leaf.stop]
        return flat.to(leaf.block.device, copy=True).view(leaf.block.shape)
    if leaf.block.shape == leaf.parameter.shape:
        return tensor.to(leaf.block.device, copy=True)
    raise ConfigError(f"{label} has shape {tuple(tensor.shape)}, not that of its parameter")
