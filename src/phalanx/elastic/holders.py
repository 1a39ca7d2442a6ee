"""Who holds which block of the optimizer state in an epoch, and which blocks move when the members change."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

REDUNDANCY = 2
"""How many ranks hold each block if the ranks of an elastic run share the optimizer: its owner, and a buddy."""


class Handover(NamedTuple):
    """A block that travels from a rank that holds it to one that will."""

    block: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Holding:
    """The ranks that hold each block, its owner first, and the handovers that bring this about."""

    holders: tuple[tuple[int, ...], ...]
    handovers: tuple[Handover, ...] = ()

    def of(self, rank: int) -> frozenset[int]:
        """Return the numbers of the blocks that a rank holds."""
        return frozenset(block for block, ranks in enumerate(self.holders) if rank in ranks)

    @property
    def owners(self) -> tuple[int, ...]:
        """The owner of each block. Every block has one."""
        return tuple(ranks[0] for ranks in self.holders)


def find_lost(blocks: int, held: Sequence[Collection[int]]) -> list[int]:
    """Return the numbers of the blocks, of so many, that nobody has ``held``."""
    return sorted(set(range(blocks)).difference(*held))


def share_state(
    sizes: Sequence[int], held: Sequence[Collection[int]], hosts: Sequence[Sequence[int]], redundancy: int
) -> Holding:
    """Decide who holds the blocks of these sizes from now on; ``held`` has the blocks that each rank holds already.

    Each block gets ``redundancy`` holders, or all ranks if there are fewer, on as many hosts as possible. Blocks move
    only to get that many holders, or from a rank to one that holds less by more than the block.
    """
    shares = _Shares([max(size, 1) for size in sizes], hosts)  # so that ranks share out empty blocks, too
    copies = min(redundancy, len(held))
    before = [[rank for rank, own in enumerate(held) if block in own] for block in range(len(sizes))]
    shares.fill(copies, before)
    shares.fill(copies)
    if copies < len(held):
        shares.even_out()
    return Holding(_put_owners_first(shares), _plan_handovers(shares, before))


class _Shares:
    """The holders of each block so far, and the elements that each rank holds."""

    def __init__(self, sizes: Sequence[int], hosts: Sequence[Sequence[int]]) -> None:
        self.sizes = sizes
        self.holders: list[list[int]] = [[] for _ in sizes]
        self.host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
        self._hosts = hosts
        self._loads = [0] * len(self.host_of)

    def fill(self, copies: int, candidates: Sequence[Collection[int]] | None = None) -> None:
        """Give every block holders until it has enough, the least loaded first; only ``candidates`` if there are."""
        for block, holders in enumerate(self.holders):
            while len(holders) < copies:
                allowed = self._allowed(holders)
                found = allowed if candidates is None else [rank for rank in allowed if rank in candidates[block]]
                if not found:
                    break
                rank = self._least_loaded(found)
                holders.append(rank)
                self._loads[rank] += self.sizes[block]

    def even_out(self) -> None:
        """Move blocks from one rank to another as long as that makes their loads more equal."""
        is_moving = True
        while is_moving:  # it ends: with each move the sum of the squares of all loads gets smaller
            is_moving = False
            for block in sorted(range(len(self.sizes)), key=lambda block: -self.sizes[block]):
                for source in list(self.holders[block]):
                    is_moving |= self._move(block, source)

    def _move(self, block: int, source: int) -> bool:
        others = [rank for rank in self.holders[block] if rank != source]
        target = self._least_loaded(self._allowed(others))
        if self._loads[source] - self._loads[target] <= self.sizes[block]:
            return False
        self._loads[source] -= self.sizes[block]
        self._loads[target] += self.sizes[block]
        self.holders[block] = [*others, target]
        return True

    def _allowed(self, holders: Collection[int]) -> list[int]:
        """Return the ranks that may hold one more copy: those on the hosts that have the fewest copies."""
        copies = Counter(self.host_of[rank] for rank in holders)
        free = [number for number, host in enumerate(self._hosts) if copies[number] < len(host)]
        fewest = min(copies[number] for number in free)
        return [
            rank for number in free if copies[number] == fewest for rank in self._hosts[number] if rank not in holders
        ]

    def _least_loaded(self, ranks: Collection[int]) -> int:
        return min(ranks, key=lambda rank: (self._loads[rank], rank))


def _put_owners_first(shares: _Shares) -> tuple[tuple[int, ...], ...]:
    """Return the holders of each block, and make those owners that own the least so far."""
    owned = [0] * len(shares.host_of)
    found = []
    for size, ranks in zip(shares.sizes, shares.holders, strict=True):
        owner = min(ranks, key=lambda rank: (owned[rank], rank))
        owned[owner] += size
        found.append((owner, *sorted(set(ranks) - {owner})))
    return tuple(found)


def _plan_handovers(shares: _Shares, before: Sequence[Sequence[int]]) -> tuple[Handover, ...]:
    """Return who sends which block to whom: a rank of the same host if one has it, and else who sends the least."""
    sent = [0] * len(shares.host_of)
    found = []
    for block, size in enumerate(shares.sizes):
        for target in sorted(set(shares.holders[block]) - set(before[block])):
            is_far = {rank: shares.host_of[rank] != shares.host_of[target] for rank in before[block]}
            source = min(before[block], key=lambda rank: (is_far[rank], sent[rank], rank))
            sent[source] += size
            found.append(Handover(block, source, target))
    return tuple(found)
