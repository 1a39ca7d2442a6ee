"""Who updates what: each piece of the parameters has one owner, who alone keeps the optimizer's state of it."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeVar

from phalanx.buffers import even_parts
from phalanx.errors import ConfigError
from phalanx.parallel.flat import Block


class Unit(Enum):
    """What has one owner: a block of a parameter, a whole parameter, or all the parameters of a layer."""

    BLOCK = "block"
    PARAMETER = "parameter"
    LAYER = "layer"


class Way(Enum):
    """How parameters or layers are given to ranks: in turn, in ranges of equal length, or by their bytes."""

    ROUND_ROBIN = "round-robin"
    CONTIGUOUS = "contiguous"
    BALANCED = "balanced"


Choice = TypeVar("Choice", Unit, Way)


def parse(kind: type[Choice], value: Choice | str) -> Choice:
    """The unit or way that is meant."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise ConfigError(f"{value!r} is no {kind.__name__.lower()}: choose from {known}") from None


@dataclass(frozen=True)
class Ownership:
    """The pieces into which some parameters are cut, each within one of them, and the rank that owns each."""

    pieces: tuple[Block, ...]
    owners: tuple[int, ...]

    def of(self, rank: int) -> list[Block]:
        """What a rank owns."""
        return [piece for piece, owner in zip(self.pieces, self.owners, strict=True) if owner == rank]

    def owner_at(self, entry: int, element: int) -> int:
        """Who owns an element of a parameter."""
        starts, owners = self._by_entry[entry]
        return owners[bisect_right(starts, element) - 1]

    def has(self, entry: int) -> bool:
        """Whether a parameter is sharded at all."""
        return entry in self._by_entry

    def __add__(self, other: "Ownership") -> "Ownership":
        return Ownership(self.pieces + other.pieces, self.owners + other.owners)

    def elements(self, rank: int) -> int:
        """How much a rank owns."""
        return sum(piece.stop - piece.start for piece in self.of(rank))

    def fraction(self, rank: int) -> float:
        """How much of all elements a rank owns; of nothing, nothing."""
        whole = sum(piece.stop - piece.start for piece in self.pieces)
        return self.elements(rank) / whole if whole else 0.0

    @cached_property
    def _by_entry(self) -> dict[int, tuple[list[int], list[int]]]:
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for piece, owner in zip(self.pieces, self.owners, strict=True):
            found[piece.entry].append((piece.start, owner))
        return {
            entry: ([start for start, _ in sorted(pairs)], [owner for _, owner in sorted(pairs)])
            for entry, pairs in found.items()
        }


def share_blocks(sizes: Sequence[int], before: Sequence[int]) -> list[int]:
    """The owners of blocks of these sizes: each goes to the rank that has least of them so far.

    If several have, it goes to the one that has least with what each rank has ``before``, of other parameters. So
    ranks differ by at most one block, and neighbours go to different ranks, which then fold at the same time.
    """
    _check(before)
    loads = [0] * len(before)
    return [_give(loads, before, size) for size in sizes]


def share_units(sizes: Sequence[int], before: Sequence[int], way: Way) -> list[int]:
    """The owner of each of some units, such as whole parameters, of these sizes.

    The rank that has least ``before`` comes first.
    """
    _check(before)
    ranks = len(before)
    first = min(range(ranks), key=before.__getitem__)
    match way:
        case Way.ROUND_ROBIN:
            return [(first + number) % ranks for number in range(len(sizes))]
        case Way.CONTIGUOUS:
            parts = even_parts(len(sizes), ranks)
            return [(first + turn) % ranks for turn, part in enumerate(parts) for _ in range(part.start, part.stop)]
        case Way.BALANCED:
            owners, loads = [0] * len(sizes), [0] * ranks
            for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
                owners[number] = _give(loads, before, sizes[number])
            return owners


def layers_of(names: Sequence[str]) -> list[list[int]]:
    """The parameters, by number, that lie in one layer: those whose names begin alike, up to their first number.

    ``blocks.3.norm.weight`` and ``blocks.3.up.weight`` do. A parameter without a number in its name is a layer itself.
    """
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        words = name.split(".")
        depth = next((at for at, word in enumerate(words, 1) if word.isdecimal()), len(words))
        found.setdefault(".".join(words[:depth]), []).append(number)
    return list(found.values())


class Label(NamedTuple):
    """What a tensor of an optimizer's state is of: ``key`` of the parameter ``name``, or of a span of its elements."""

    name: str
    key: str
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        ending = "" if self.span is None else f"[{self.span[0]}:{self.span[1]}]"
        return f"{self.name}.{self.key}{ending}"


_SPAN = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


def parse_label(text: str) -> Label:
    """Read what ``str`` made of a label."""
    matched = _SPAN.fullmatch(text)
    whole, span = (matched[1], (int(matched[2]), int(matched[3]))) if matched else (text, None)
    name, _, key = whole.rpartition(".")
    return Label(name, key, span)


class Found(NamedTuple):
    """Where some wanted elements are: ``source`` within the span with this ``number``, ``target`` within the wanted."""

    number: int
    source: slice
    target: slice


def locate(wanted: slice, spans: Sequence[tuple[int, int]], what: str) -> Iterator[Found]:
    """Find all of some elements in spans, in order; ConfigError, which names ``what``, if some are in none."""
    at = wanted.start
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[number]
        end = min(stop, wanted.stop)
        if start <= at < end:
            yield Found(number, slice(at - start, end - start), slice(at - wanted.start, end - wanted.start))
            at = end
    if at < wanted.stop:
        raise ConfigError(f"elements {at} to {wanted.stop - 1} of {what} are missing: a shard is not there")


def _give(loads: list[int], before: Sequence[int], size: int) -> int:
    """The rank with the least load, which now has ``size`` more."""
    rank = min(range(len(loads)), key=lambda rank: (loads[rank], before[rank] + loads[rank]))
    loads[rank] += size
    return rank


def _check(before: Sequence[int]) -> None:
    if not before:
        raise ConfigError("at least 1 rank owns something, not 0")
