"""Which rank owns which block of the parameters. Only the owner updates the block and keeps its optimizer state."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

from phalanx.buffers import even_parts
from phalanx.errors import ConfigError
from phalanx.parallel.reduction.layout import Block


class Unit(Enum):
    """What has one owner: a block of a parameter, a whole parameter, or all the parameters of a layer."""

    BLOCK = "block"
    PARAMETER = "parameter"
    LAYER = "layer"


class Way(Enum):
    """How owners are chosen: ranks in turn, consecutive ranges of equal count, or equal numbers of elements."""

    ROUND_ROBIN = "round-robin"
    CONTIGUOUS = "contiguous"
    BALANCED = "balanced"


Choice = TypeVar("Choice", Unit, Way)


def parse(kind: type[Choice], value: Choice | str) -> Choice:
    """Return the unit or the way with this name."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise ConfigError(f"{value!r} is no {kind.__name__.lower()}: choose from {known}") from None


@dataclass(frozen=True)
class Ownership:
    """The blocks that some parameters are cut into, of any size, and the rank that owns each."""

    blocks: tuple[Block, ...]
    owners: tuple[int, ...]

    def of(self, rank: int) -> list[Block]:
        """Return the blocks that a rank owns."""
        return [block for block, owner in zip(self.blocks, self.owners, strict=True) if owner == rank]

    def owner_at(self, parameter: int, element: int) -> int:
        """Return the rank that owns an element of a parameter."""
        starts, owners = self._by_parameter[parameter]
        return owners[bisect_right(starts, element) - 1]

    def has(self, parameter: int) -> bool:
        """Return whether a parameter is sharded at all."""
        return parameter in self._by_parameter

    def __add__(self, other: "Ownership") -> "Ownership":
        return Ownership(self.blocks + other.blocks, self.owners + other.owners)

    def elements(self, rank: int) -> int:
        """Return how many elements a rank owns."""
        return sum(block.stop - block.start for block in self.of(rank))

    @cached_property
    def _by_parameter(self) -> dict[int, tuple[list[int], list[int]]]:
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for block, owner in zip(self.blocks, self.owners, strict=True):
            found[block.parameter].append((block.start, owner))
        return {
            parameter: ([start for start, _ in sorted(pairs)], [owner for _, owner in sorted(pairs)])
            for parameter, pairs in found.items()
        }


def share_blocks(sizes: Sequence[int], before: Sequence[int]) -> list[int]:
    """Return the owners of blocks of these sizes: each block goes to the rank with the fewest elements so far.

    Among equals it goes to the rank with the fewest elements in all; ``before`` has the elements of other parameters
    that each rank owns. So ranks differ by at most one block. Neighbours go to different ranks, which then add up at
    the same time.
    """
    _check(before)
    loads = [0] * len(before)
    return [_give(loads, before, size) for size in sizes]


def share_units(sizes: Sequence[int], before: Sequence[int], way: Way) -> list[int]:
    """Return the owners of units of these sizes, such as whole parameters.

    The rank with the fewest elements ``before`` comes first.
    """
    _check(before)
    ranks = len(before)
    first = min(range(ranks), key=before.__getitem__)
    match way:
        case Way.ROUND_ROBIN:
            return [(first + number) % ranks for number in range(len(sizes))]
        case Way.CONTIGUOUS:
            parts = even_parts(len(sizes), ranks)
            return [(first + index) % ranks for index, part in enumerate(parts) for _ in range(part.start, part.stop)]
        case Way.BALANCED:
            owners, loads = [0] * len(sizes), [0] * ranks
            for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
                owners[number] = _give(loads, before, sizes[number])
            return owners


def layers_of(names: Sequence[str]) -> list[list[int]]:
    """Return the parameters of each layer by number: those whose names begin alike, up to their first number.

    ``blocks.3.norm.weight`` and ``blocks.3.up.weight`` do. A parameter without a number in its name is a layer itself.
    """
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        words = name.split(".")
        depth = next((at for at, word in enumerate(words, 1) if word.isdecimal()), len(words))
        found.setdefault(".".join(words[:depth]), []).append(number)
    return list(found.values())


def _give(loads: list[int], before: Sequence[int], size: int) -> int:
    """Add ``size`` to the rank with the least load, and return that rank."""
    rank = min(range(len(loads)), key=lambda rank: (loads[rank], before[rank] + loads[rank]))
    loads[rank] += size
    return rank


def _check(before: Sequence[int]) -> None:
    if not before:
        raise ConfigError("at least 1 rank owns something, not 0")
