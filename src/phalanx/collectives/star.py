"""Collectives through one rank, the root: for workers that can call out but cannot be called.

The root folds in canonical order and carries everyone's bytes, so its wire is the limit. Nobody else needs a link to
anyone but the root.
"""

from phalanx.collectives.direct import gather, scatter
from phalanx.collectives.plan import Plan, Receive, Round, Send, Then

__all__ = ["all_reduce", "broadcast", "gather", "reduce", "scatter"]  # to or from one rank, direct is a star already


def all_reduce(rank: int, size: int, root: int, length: int) -> Plan:
    """Leave the reduction of all buffers on every rank.

    Rounds: 2. Elements sent by each rank: the buffer; by the root: the buffer n - 1 times.
    """
    return reduce(rank, size, root, length) + broadcast(rank, size, root, length)


def reduce(rank: int, size: int, root: int, length: int) -> Plan:
    """Leave the reduction of all buffers on ``root``; the others keep their buffers.

    Rounds: 1. Elements sent by each rank: the buffer; by the root: none.
    """
    whole = slice(0, length)
    if rank != root:
        return Plan((Round.of(sends=[Send(root, whole)]),))
    receives = [Receive(peer, whole, then=Then.FOLD) for peer in range(size) if peer != root]
    return Plan((Round.of(receives=receives, finish=whole),))


def broadcast(rank: int, size: int, root: int, length: int) -> Plan:
    """Copy the root's buffer to every rank.

    Rounds: 1. Elements sent by the root: the buffer n - 1 times; by the others: none.
    """
    whole = slice(0, length)
    if rank != root:
        return Plan((Round.of(receives=[Receive(root, whole)]),))
    return Plan((Round.of(sends=[Send(peer, whole) for peer in range(size) if peer != root]),))
