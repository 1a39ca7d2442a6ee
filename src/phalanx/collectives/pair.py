"""The all-reduce of two ranks: both send their whole buffer, and both fold."""

from phalanx.collectives.plan import Plan, Receive, Round, Send, Then


def all_reduce(rank: int, length: int) -> Plan:
    """Leave the reduction of both buffers on both ranks, in canonical order.

    Rounds: 1. Elements sent by each rank: the buffer.
    """
    peer, whole = 1 - rank, slice(0, length)
    both = Round.of(sends=[Send(peer, whole)], receives=[Receive(peer, whole, then=Then.FOLD)], finish=whole)
    return Plan((both,))
