"""The start of an epoch: what members tell each other, and the optimizer state that they describe."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from phalanx.elastic import Stance
from phalanx.group import Group
from phalanx.parallel.engine.report import Report
from phalanx.parallel.optimizer import Leaf, from_tensor, to_tensor


class StateSpec(msgspec.Struct, frozen=True, array_like=True):
    """One value of the optimizer's state: ``key`` of the leaf with this number."""

    leaf: int
    key: str
    dtype: str
    shape: tuple[int, ...]


class Introduction(msgspec.Struct, frozen=True):
    """What a member says at the start of an epoch: its ``stance``, and what newcomers get from it.

    That is the ``report`` of the last step, the ``settings`` of the optimizer's groups, the user's own ``extra``, and a
    description of the optimizer ``state`` that it holds.
    """

    stance: Stance
    report: Report | None
    settings: list[dict[str, Any]]  # Any: numbers, words and None, as optimizers have them
    state: list[StateSpec]
    extra: bytes

    def specs_by_leaf(self) -> dict[int, list[StateSpec]]:
        """Return what this member keeps for each leaf, by the number of the leaf."""
        found: dict[int, list[StateSpec]] = defaultdict(list)
        for spec in self.state:
            found[spec.leaf].append(spec)
        return found


def tell(group: Group, introduction: Introduction) -> list[Introduction]:
    """Return the introductions of all members, by rank."""
    told = group.all_gather_unequal(np.frombuffer(msgspec.msgpack.encode(introduction), np.uint8))
    return [msgspec.msgpack.decode(each.tobytes(), type=Introduction) for each in told]


def describe_state(optimizer: torch.optim.Optimizer, leaves: Sequence[Leaf]) -> list[StateSpec]:
    """Return what the optimizer keeps for its leaves, in a fixed order."""
    return [
        StateSpec(number, key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for number, key, tensor in _state_of(optimizer, leaves)
    ]


def list_state(optimizer: torch.optim.Optimizer, leaf: Leaf) -> list[torch.Tensor]:
    """Return what the optimizer keeps for a leaf, in the order of ``describe_state``."""
    return [tensor for _, _, tensor in _state_of(optimizer, [leaf])]


def make_state(specs: Iterable[StateSpec], leaves: Sequence[Leaf], *, on_device: bool) -> list[torch.Tensor]:
    """Return room for the values that a holder describes, on the devices on which an optimizer keeps them."""
    return [
        torch.empty(
            spec.shape,
            dtype=getattr(torch, spec.dtype),
            device=leaves[spec.leaf].block.device if spec.shape or on_device else "cpu",
        )
        for spec in specs
    ]


def load_state(
    optimizer: torch.optim.Optimizer,
    leaves: Sequence[Leaf],
    specs: Iterable[StateSpec],
    tensors: Iterable[torch.Tensor],
) -> None:
    """Add what has arrived to the optimizer's state."""
    for spec, tensor in zip(specs, tensors, strict=True):
        optimizer.state[leaves[spec.leaf].block][spec.key] = from_tensor(tensor)


def _state_of(optimizer: torch.optim.Optimizer, leaves: Sequence[Leaf]) -> Iterator[tuple[int, str, torch.Tensor]]:
    for number, leaf in enumerate(leaves):
        for key, value in sorted(optimizer.state.get(leaf.block, {}).items()):
            if value is not None:
                yield number, key, to_tensor(value)
