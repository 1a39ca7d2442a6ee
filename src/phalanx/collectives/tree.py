"""Collectives over a binomial tree: few rounds and few messages, but the whole buffer in each.

On the way up every rank folds the sums of its subtrees into its own buffer. Towards rank 0 these are exactly the
additions of the canonical tree over ranks. So rank 0 always computes the result, and sends it on if another rank is the
root.
"""

from collections.abc import Iterator

from phalanx.collectives.plan import Plan, Receive, Round, Send, Then


def all_reduce(rank: int, size: int, length: int) -> Plan:
    """Leave the reduction of all buffers on every rank.

    Rounds: 2 ceil(log2 n). Elements sent by all ranks together: the buffer 2(n - 1) times; by none of them more than
    ceil(log2 n) times.
    """
    return reduce(rank, size, 0, length) + broadcast(rank, size, 0, length)


def reduce(rank: int, size: int, root: int, length: int) -> Plan:
    """Leave the reduction of all buffers on ``root``, in the same bits for every root; the others hold partial sums.

    Rounds: ceil(log2 n), and one more unless the root is rank 0. Elements sent by each rank: the buffer; by rank 0:
    none if it is the root.
    """
    whole = slice(0, length)
    last = _depth(size) - 1
    up = Plan(
        tuple(
            Round.of(
                sends=[Send(peer, whole) for peer in to],
                receives=[Receive(peer, whole, then=Then.FOLD) for peer in source],
                finish=whole if rank == 0 and index == last else None,
            )
            for index, (to, source) in enumerate(_towards_zero(rank, size))
        )
    )
    if root == 0:
        return up
    hop = Round.of(
        sends=[Send(root, whole)] if rank == 0 else (),
        receives=[Receive(0, whole)] if rank == root else (),
    )
    return up + Plan((hop,))


def broadcast(rank: int, size: int, root: int, length: int) -> Plan:
    """Copy the root's buffer to every rank.

    Rounds: ceil(log2 n). Elements sent by all ranks together: the buffer n - 1 times; by the root: ceil(log2 n) times.
    """
    whole = slice(0, length)
    return Plan(
        tuple(
            Round.of(
                sends=[Send(peer, whole) for peer in to],
                receives=[Receive(peer, whole) for peer in source],
            )
            for to, source in _away_from(root, rank, size)
        )
    )


def barrier(rank: int, size: int) -> Plan:
    """Return when every rank has come: empty messages to rank 0 and back.

    Rounds: 2 ceil(log2 n). Elements sent by each rank: none.
    """
    nothing = slice(0, 0)
    steps = (*_towards_zero(rank, size), *_away_from(0, rank, size))
    return Plan(
        tuple(
            Round(
                sends=tuple(Send(peer, nothing) for peer in to),
                receives=tuple(Receive(peer, nothing) for peer in source),
            )
            for to, source in steps
        )
    )


def _depth(size: int) -> int:
    """Return the number of rounds in which one rank can reach all others: ceil(log2 size)."""
    return (size - 1).bit_length()


def _towards_zero(rank: int, size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield, for each round, the ranks that ``rank`` sends to and receives from if rank 0 collects everything.

    In round k, ranks that are 2^k apart exchange. This is the order of the canonical tree.
    """
    for distance in (1 << index for index in range(_depth(size))):
        place = rank % (2 * distance)
        to = [rank - distance] if place == distance else []
        source = [rank + distance] if place == 0 and rank + distance < size else []
        yield to, source


def _away_from(root: int, rank: int, size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield, for each round, the ranks that ``rank`` sends to and receives from if ``root`` sends to all.

    In round k, the 2^k ranks that have the buffer send it to as many others.
    """
    place = (rank - root) % size
    for reached in (1 << index for index in range(_depth(size))):
        to = [(rank + reached) % size] if place < reached and place + reached < size else []
        source = [(rank - reached) % size] if reached <= place < 2 * reached else []
        yield to, source
