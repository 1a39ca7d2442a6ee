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
    def keeping(cls, lanes: int, kept: Sequence[Collection[int]]) -> "LaneShares":
        """Return shares as even as possible in which ranks compute the lanes that they have ``kept``, if they can.

        The ranks that have kept most get the larger shares. Lanes that nobody keeps go where there is room, lowest
        rank first.
        """
        most_first = sorted(range(len(kept)), key=lambda rank: (-len(kept[rank]), rank))
        parts = (even_part(lanes, len(kept), place) for place in range(len(kept)))
        quota = {rank: part.stop - part.start for rank, part in zip(most_first, parts, strict=True)}
        shares: dict[int, list[int]] = {}
        taken: set[int] = set()
        for rank, own in enumerate(kept):  # two ranks may have kept the same lane
            shares[rank] = sorted(set(own) - taken)[: quota[rank]]
            taken |= set(shares[rank])
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
