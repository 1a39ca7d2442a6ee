"""How the members of an epoch enter it: what each does, in which order, until all have the same state.

All members decide this alike, from what they have told each other. Any of them may die behind any move. What the others
then hold is enough for the next epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.buffers import LaneShares, even_part
from phalanx.elastic.holders import REDUNDANCY, Handover, Holding, find_lost, share_state
from phalanx.elastic.stance import Roles, Stance, choose_roles


@dataclass(frozen=True, slots=True)
class StartAlike:
    """Get the weights of rank 0: nobody has been in an epoch before."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Be new no longer: this member has the state of the run."""


@dataclass(frozen=True, slots=True)
class CopyWeights:
    """Copy all weights from the holders to the newcomers."""

    holders: tuple[int, ...]
    newcomers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Move the optimizer state of blocks between members.

    If a member is not ``is_whole``, the weights of a block travel with its state: only its holders surely have them.
    """

    handovers: tuple[Handover, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Follow:
    """Stand where the source does: all that a newcomer needs has arrived."""

    source: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Learn:
    """Hold the blocks that have arrived, and take over what the source knows of the present step.

    If the coordinator does not know that this member has the state, it is told now, before the comparison: all others
    that have it may die.
    """

    source: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Form the exchange, and get the weights that this member lacks unless all members are ``is_whole``."""

    shares: LaneShares
    holding: Holding
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare weights and optimizer state. When this returns, all members have what they hold from now on."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Drop the optimizer state that others hold from now on."""

    holding: Holding


EntryMove = StartAlike | Settle | CopyWeights | HandOver | Follow | Learn | Form | Compare | Hold


def find_lost_state(stances: Sequence[Stance], blocks: int) -> list[int]:
    """Return the blocks, of so many, whose optimizer state no member has."""
    return find_lost(blocks, _held_blocks(stances, choose_roles(stances)))


def plan_entry(
    rank: int, stances: Sequence[Stance], sizes: Sequence[int], hosts: Sequence[Sequence[int]], lanes: int
) -> list[EntryMove]:
    """Return what a member does to enter an epoch. No state may be lost.

    ``sizes`` has the size of each block, and ``hosts`` the ranks of each host.
    """
    roles = choose_roles(stances)
    holders, source, newcomers, is_first = roles
    is_sharing, is_newcomer = stances[source].is_sharing, rank in newcomers
    is_whole = all(stances[each].is_whole for each in holders)
    redundancy = REDUNDANCY if is_sharing else len(stances)
    holding = share_state(sizes, _held_blocks(stances, roles), hosts, redundancy)
    arriving = tuple(each.block for each in holding.handovers if each.target == rank)
    moves: list[EntryMove] = []
    if is_first and not newcomers:
        moves.append(StartAlike())
    if not is_newcomer:
        moves.append(Settle())  # before anything is dropped: a new member's state does not count
    if newcomers:
        moves.append(CopyWeights(holders, newcomers))
    moves.append(HandOver(holding.handovers, is_whole))
    if is_newcomer:
        moves.append(Follow(source, is_whole))
    moves += [Learn(source, arriving), Form(_share_lanes(lanes, stances), holding, is_whole)]
    if newcomers or is_sharing:
        moves.append(Compare())
    return [*moves, Hold(holding)]


def cut_copy(size: int, holders: Sequence[int]) -> dict[int, slice]:
    """Return which part each holder sends of what newcomers get, by rank: even parts, so that all send as long."""
    return {rank: even_part(size, len(holders), place) for place, rank in enumerate(holders)}


def _held_blocks(stances: Sequence[Stance], roles: Roles) -> list[tuple[int, ...]]:
    """Return the blocks of which each member has the state of the present step."""
    return [each.held if rank in roles.holders else () for rank, each in enumerate(stances)]


def _share_lanes(lanes: int, stances: Sequence[Stance]) -> LaneShares:
    """Return who computes which lanes. Members keep the sums that they have of the present step, if they can."""
    latest = max(each.step for each in stances)
    kept = [[range(*span) for span in each.pieces] if each.step == latest else [] for each in stances]
    return LaneShares.keeping(lanes, kept)
