"""The start of an epoch: the members tell each other what they hold, and decide who gets what."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.engine.report import Report
from phalanx.parallel.optimizer import Leaf, from_tensor, to_tensor


class StateSpec(msgspec.Struct, frozen=True, array_like=True):
    """One value of the optimizer's state: ``key`` of the leaf with this number."""

    leaf: int
    key: str
    dtype: str
    shape: tuple[int, ...]


class Stance(msgspec.Struct, frozen=True):
    """What a member says at the start of an epoch.

    ``step`` is the next step of its state, and ``is_new`` says that it has never been in an epoch with others. It has
    kept the ``lanes`` of that step. It holds the optimizer state of the leaves in ``held``, whose values ``state``
    describes, and has the weights of these; if it ``is_whole``, it has all weights. ``is_sharing`` says whether it was
    told to share the optimizer. The rest is for newcomers: the ``report`` of the last step, the ``results`` of what the
    members have found together since then, the ``settings`` of the optimizer's groups, and the user's own ``extra``.
    """

    step: int
    is_new: bool
    report: Report | None
    results: list[float | bytes]
    lanes: list[int]
    held: list[int]
    is_whole: bool
    is_sharing: bool
    settings: list[dict[str, Any]]  # Any: numbers, words and None, as optimizers have them
    state: list[StateSpec]
    extra: bytes


class Roles(NamedTuple):
    """Which members hold the latest state, which of them knows most, and which need the state."""

    holders: tuple[int, ...]
    source: int
    newcomers: tuple[int, ...]
    is_first: bool
    """Whether nobody has been in an epoch before: then all begin with the weights of rank 0."""


def choose_roles(stances: Sequence[Stance]) -> Roles:
    """Decide who gives and who gets the state."""
    latest = max(each.step for each in stances)
    here = [rank for rank, each in enumerate(stances) if each.step == latest]
    old = [rank for rank in here if not stances[rank].is_new]
    holders = old or here
    source = max(holders, key=lambda rank: (len(stances[rank].results), -rank))
    newcomers = tuple(rank for rank in range(len(stances)) if rank not in holders)
    return Roles(tuple(holders), source, newcomers, is_first=not old)


def check_sharing(stances: Sequence[Stance], source: int) -> None:
    """Raise ConfigError, the same on all members, unless all were told alike whether to share the optimizer."""
    told = stances[source].is_sharing
    for rank, stance in enumerate(stances):
        if stance.is_sharing != told:
            other = f"rank {rank} has zero={stance.is_sharing}"
            raise ConfigError(f"rank {source} has zero={told}, where {other}: give all workers the same")


def kept_lanes(stances: Sequence[Stance]) -> list[list[int]]:
    """Return the lanes of the present step that each member has kept."""
    latest = max(each.step for each in stances)
    return [each.lanes if each.step == latest else [] for each in stances]


def specs_by_leaf(stance: Stance) -> dict[int, list[StateSpec]]:
    """Return what a member keeps for each leaf, by the number of the leaf."""
    found: dict[int, list[StateSpec]] = defaultdict(list)
    for spec in stance.state:
        found[spec.leaf].append(spec)
    return found


def tell(group: Group, stance: Stance) -> list[Stance]:
    """Return the stances of all members, by rank."""
    told = group.all_gather_unequal(np.frombuffer(msgspec.msgpack.encode(stance), np.uint8))
    return [msgspec.msgpack.decode(each.tobytes(), type=Stance) for each in told]


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
