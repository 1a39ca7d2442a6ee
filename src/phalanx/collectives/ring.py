"""Collectives around a ring: each rank sends to the next and receives from the one before.

These plans send as few bytes as possible and need only two flows at each rank, but as many rounds as there are peers. A
part is added up while it travels, beginning behind its owner, so each part has its own order of additions. All ranks
get the same bits, but not the bits of the canonical tree.
"""

from collections.abc import Sequence

from phalanx.collectives.plan import Plan, Receive, Round, Send, Then


def all_reduce(rank: int, parts: Sequence[slice]) -> Plan:
    """Leave the reduction of all buffers on every rank.

    Rounds: 2(n - 1). Elements sent by each rank: the buffer twice, less its own part and the next rank's.
    """
    return reduce_scatter(rank, parts) + all_gather(rank, parts)


def reduce_scatter(rank: int, parts: Sequence[slice]) -> Plan:
    """Leave the reduction of ``parts[r]`` on rank ``r``; the rest of its buffer holds partial sums.

    Rounds: n - 1. Elements sent by each rank: the buffer less its own part.
    """
    size = len(parts)
    return Plan(
        tuple(
            Round.of(
                sends=[Send((rank + 1) % size, parts[(rank - index - 1) % size])],
                receives=[Receive((rank - 1) % size, parts[(rank - index - 2) % size], then=Then.FOLD)],
                finish=parts[rank] if index == size - 2 else None,
            )
            for index in range(size - 1)
        )
    )


def all_gather(rank: int, parts: Sequence[slice]) -> Plan:
    """Copy ``parts[r]`` from rank ``r`` to every rank.

    Rounds: n - 1. Elements sent by each rank: the buffer less the next rank's part.
    """
    size = len(parts)
    return Plan(
        tuple(
            Round.of(
                sends=[Send((rank + 1) % size, parts[(rank - index) % size])],
                receives=[Receive((rank - 1) % size, parts[(rank - index - 1) % size])],
            )
            for index in range(size - 1)
        )
    )
