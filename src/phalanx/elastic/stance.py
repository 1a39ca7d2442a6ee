"""What members tell each other at the start of an epoch, and which of them give the state to which others."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from phalanx.errors import ConfigError


class Stance(msgspec.Struct, frozen=True):
    """What a member says of itself at the start of an epoch: all decisions about this start depend on nothing else.

    ``step`` is the next step of its state, and ``is_new`` says that it has never been in an epoch with others. It has
    kept the sums of these ``pieces`` of that step, each from a first lane up to another. ``results`` has what the
    members have found together since the last step. It holds the optimizer state of the blocks in ``held``, and has the
    weights of these; if it ``is_whole``, it has all weights. ``is_sharing`` says whether it was told to share the
    optimizer.
    """

    step: int
    is_new: bool
    results: tuple[float | bytes, ...]
    pieces: tuple[tuple[int, int], ...]
    held: tuple[int, ...]
    is_whole: bool
    is_sharing: bool


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
