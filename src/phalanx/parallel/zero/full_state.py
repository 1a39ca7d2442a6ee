"""The state of all shards put together, in the form of torch's own optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.optimizer import Label, from_tensor, parse_label, to_tensor


class _Item(msgspec.Struct, frozen=True):
    """The description of a tensor that a rank sends."""

    label: str
    dtype: str
    shape: tuple[int, ...]


def collect(
    labelled: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size], group: Group, to: int
) -> dict[str, torch.Tensor] | None:
    """Return the labelled tensors of all ranks on rank ``to``, spans joined to whole parameters; None elsewhere."""
    if to not in range(group.size):
        raise ConfigError(f"there is no rank {to} to collect the state on: pass one from 0 to {group.size - 1}")
    own = [_Item(label, str(each.dtype).removeprefix("torch."), tuple(each.shape)) for label, each in labelled.items()]
    listed = group.all_gather_unequal(np.frombuffer(msgspec.json.encode(own), np.uint8))
    if group.rank != to:
        for tensor in labelled.values():
            group.send(_as_bytes(tensor.detach().cpu().contiguous()), to)
        return None
    found: dict[str, torch.Tensor] = {}
    queues = [msgspec.json.decode(text.tobytes(), type=list[_Item]) for text in listed]
    for position in range(max(map(len, queues))):  # one of each rank at a time, so that none waits for all others
        for rank, queue in enumerate(queues):
            if position < len(queue):
                item = queue[position]
                tensor = labelled[item.label].detach().cpu().clone() if rank == to else _receive(item, group, rank)
                _place(found, parse_label(item.label), tensor, shapes)
    return found


def make_full(
    labelled: Mapping[str, torch.Tensor], names: Sequence[str], groups: Sequence[tuple[Mapping[str, Any], int]]
) -> dict[str, Any]:
    """Return the ``state_dict`` of a full optimizer; ``groups`` has settings and number of parameters of each."""
    numbers = {name: number for number, name in enumerate(names)}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for text, tensor in labelled.items():
        label = parse_label(text)
        state.setdefault(numbers[label.name], {})[label.key] = from_tensor(tensor)
    listed, first = [], 0
    for settings, count in groups:
        listed.append({**settings, "params": list(range(first, first + count))})
        first += count
    return {"state": dict(sorted(state.items())), "param_groups": listed}


def labels_of_full(state_dict: Mapping[str, Any], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the labelled tensors of a full optimizer's ``state_dict``."""
    return {
        str(Label(names[number], key)): to_tensor(value)
        for number, kept in state_dict["state"].items()
        for key, value in kept.items()
        if value is not None
    }


def _place(
    found: dict[str, torch.Tensor], label: Label, tensor: torch.Tensor, shapes: Mapping[str, torch.Size]
) -> None:
    whole = str(label._replace(span=None))
    if label.span is None:
        found[whole] = tensor
        return
    if whole not in found:
        found[whole] = torch.empty(shapes[label.name], dtype=tensor.dtype)
    found[whole].view(-1)[slice(*label.span)] = tensor


def _receive(item: _Item, group: Group, rank: int) -> torch.Tensor:
    tensor = torch.empty(item.shape, dtype=getattr(torch, item.dtype))
    group.recv(_as_bytes(tensor), rank)
    return tensor


def _as_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found: np.ndarray[Any, np.dtype[np.uint8]] = tensor.view(-1).view(torch.uint8).numpy()
    return found
