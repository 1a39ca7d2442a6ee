"""Which lanes each rank computes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from phalanx.buffers.fold import cover
from phalanx.buffers.split import even_part, own_lanes
from phalanx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LaneShares:
    """The lanes of every rank, in order. Every lane is computed by exactly one rank."""

    by_rank: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if sorted(lane for own in self.by_rank for lane in own) != list(range(self.count)):
            raise ConfigError(f"every lane is computed by one rank, and not by {self.by_rank}")
        if not all(self.by_rank) or any(list(own) != sorted(own) for own in self.by_rank):
            raise ConfigError(f"every rank computes at least one lane, in order, and not {self.by_rank}")

    @classmethod
    @lru_cache
    def even(cls, lanes: int, size: int) -> "LaneShares":
        """Return shares of consecutive lanes, as even as possible."""
        return cls(tuple(tuple(own_lanes(lanes, size, rank)) for rank in range(size)))

    @classmethod
    def keeping(cls, lanes: int, kept: Sequence[Collection[range]]) -> "LaneShares":
        """Return shares as even as possible that have in them the pieces whose sums ranks have ``kept``, if they can.

        A sum is of use only as a whole. The ranks that have kept most get the larger shares. Lanes that nobody keeps go
        where there is room, lowest rank first.
        """
        amounts = [len(set().union(*pieces)) for pieces in kept]
        most_first = sorted(range(len(kept)), key=lambda rank: (-amounts[rank], rank))
        parts = (even_part(lanes, len(kept), place) for place in range(len(kept)))
        quota = {rank: part.stop - part.start for rank, part in zip(most_first, parts, strict=True)}
        shares: dict[int, list[int]] = {}
        taken: set[int] = set()
        for rank, pieces in enumerate(kept):  # two ranks may have kept the same lane
            shares[rank] = []
            for piece in sorted(pieces, key=lambda each: (-len(each), each.start)):
                if len(piece) <= quota[rank] - len(shares[rank]) and taken.isdisjoint(piece):
                    shares[rank] += piece
                    taken |= set(piece)
        free = iter(lane for lane in range(lanes) if lane not in taken)
        for rank, share in shares.items():
            share += [next(free) for _ in range(quota[rank] - len(share))]
        return cls(tuple(tuple(sorted(share)) for share in shares.values()))

    @property
    def count(self) -> int:
        """The number of lanes."""
        return sum(map(len, self.by_rank))

    def pieces(self, rank: int) -> tuple[range, ...]:
        """Return the fewest whole subtrees that the lanes of a rank make."""
        return cover(self.by_rank[rank], self.count)


def plan_lanes(own: Sequence[int], kept: Sequence[range]) -> list[range]:
    """Return what a rank contributes, in order: pieces that it has ``kept``, and each other lane of its ``own``.

    Of pieces that overlap, one contains the others, and is taken.
    """
    whole: list[range] = []
    covered: set[int] = set()
    for piece in sorted(kept, key=len, reverse=True):
        if set(piece) <= set(own) - covered:
            whole.append(piece)
            covered |= set(piece)
    return sorted(
        [*whole, *(range(lane, lane + 1) for lane in own if lane not in covered)], key=lambda each: each.start
    )
