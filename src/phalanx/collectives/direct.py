"""Collectives in which every part goes straight to the rank that needs it.

These plans send as few bytes as a ring, in one round instead of n - 1, but need a flow between every two ranks. The
rank that folds a part has all contributions and folds them in canonical order.
"""

from collections.abc import Sequence

from phalanx.collectives.plan import Plan, Receive, Round, Send, Then, length_of


def all_reduce(rank: int, parts: Sequence[slice]) -> Plan:
    """Leave the reduction of all buffers on every rank.

    Rounds: 2. Elements sent by each rank: the buffer less its own part, then its own part n - 1 times.
    """
    return reduce_scatter(rank, parts) + all_gather(rank, parts)


def reduce_scatter(rank: int, parts: Sequence[slice]) -> Plan:
    """Leave the reduction of ``parts[r]`` on rank ``r``; the rest of its buffer stays as it was.

    Rounds: 1. Elements sent by each rank: the buffer less its own part.
    """
    peers = _peers(rank, len(parts))
    only = Round.of(
        sends=[Send(peer, parts[peer]) for peer in peers],
        receives=[Receive(peer, parts[rank], then=Then.FOLD) for peer in peers],
        finish=parts[rank],
    )
    return Plan((only,))


def all_gather(rank: int, parts: Sequence[slice]) -> Plan:
    """Copy ``parts[r]`` from rank ``r`` to every rank.

    Rounds: 1. Elements sent by each rank: its own part n - 1 times.
    """
    peers = _peers(rank, len(parts))
    only = Round.of(
        sends=[Send(peer, parts[rank]) for peer in peers],
        receives=[Receive(peer, parts[peer]) for peer in peers],
    )
    return Plan((only,))


def reduce(rank: int, root: int, parts: Sequence[slice]) -> Plan:
    """Leave the reduction of all buffers on ``root``; the others keep their buffers but for their own part.

    Rounds: 2. Elements sent by each rank: the buffer; by the root: the buffer less its own part.
    """
    collect = Round.of(
        sends=[Send(root, parts[rank])] if rank != root else (),
        receives=[Receive(peer, parts[peer]) for peer in _peers(rank, len(parts))] if rank == root else (),
    )
    return reduce_scatter(rank, parts) + Plan((collect,))


def gather(rank: int, root: int, parts: Sequence[slice]) -> Plan:
    """Put the source of rank ``r`` into ``parts[r]`` of the root's target, except its own, which does not travel.

    Rounds: 1. Elements sent by each rank: its source; by the root: none.
    """
    only = Round.of(
        sends=[Send(root, _alone(parts[rank]))] if rank != root else (),
        receives=[Receive(peer, parts[peer]) for peer in _peers(rank, len(parts))] if rank == root else (),
    )
    return Plan((only,))


def scatter(rank: int, root: int, parts: Sequence[slice]) -> Plan:
    """Put ``parts[r]`` of the root's source into the target of rank ``r``, except its own, which does not travel.

    Rounds: 1. Elements sent by the root: its source less its own part; by the others: none.
    """
    only = Round.of(
        sends=[Send(peer, parts[peer]) for peer in _peers(rank, len(parts))] if rank == root else (),
        receives=[Receive(root, _alone(parts[rank]))] if rank != root else (),
    )
    return Plan((only,))


def all_to_all(rank: int, send_parts: Sequence[slice], receive_parts: Sequence[slice]) -> Plan:
    """Put ``send_parts[r]`` of the source into rank ``r``'s target, except its own, which does not travel.

    What comes from rank ``r`` lands in ``receive_parts[r]``.

    Rounds: 1. Elements sent by each rank: its source less its own part.
    """
    peers = _peers(rank, len(send_parts))
    only = Round.of(
        sends=[Send(peer, send_parts[peer]) for peer in peers],
        receives=[Receive(peer, receive_parts[peer]) for peer in peers],
    )
    return Plan((only,))


def barrier(rank: int, size: int) -> Plan:
    """Return when every rank has come: an empty message from everyone to everyone.

    Rounds: 1. Elements sent by each rank: none.
    """
    peers, nothing = _peers(rank, size), slice(0, 0)
    only = Round(
        sends=tuple(Send(peer, nothing) for peer in peers),
        receives=tuple(Receive(peer, nothing) for peer in peers),
    )
    return Plan((only,))


def _peers(rank: int, size: int) -> list[int]:
    """Return the other ranks, beginning with the next one, so that not all ranks send to rank 0 first."""
    return [(rank + distance) % size for distance in range(1, size)]


def _alone(part: slice) -> slice:
    """Return the slice of ``part`` in a buffer that holds only this part."""
    return slice(0, length_of(part))
