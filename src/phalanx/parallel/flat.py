"""Where everything lies in the flat space: parameters end to end, blocks and cuts within them, buckets over them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from phalanx.buffers import RUN, runs
from phalanx.errors import ConfigError

BLOCK = 2**18
"""The most elements of a block, which is what an optimizer updates at a time: each costs it some calls."""

CUT = RUN
"""The most elements of a cut, which is what is added up and measured at a time, while it is in cache."""

_ALIGNED = 64  # elements: a parameter begins at the start of a cache line, whatever its type


def align(size: int) -> int:
    """The elements that are set aside for so many, so that what follows begins at the start of a cache line."""
    return -(-size // _ALIGNED) * _ALIGNED


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter as the flat space sees it."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some elements of one parameter, never of two: ``start`` and ``stop`` count within the parameter."""

    entry: int
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Parameters that are exchanged together: their ``entries``, the place of each, and the blocks they are cut into.

    ``cuts`` are runs of its elements, each of one parameter; ``first_cut`` is the number of the first among all.
    """

    entries: tuple[int, ...]
    places: tuple[slice, ...]
    blocks: tuple[Block, ...]
    cuts: tuple[slice, ...]
    first_cut: int

    @cached_property
    def length(self) -> int:
        """The elements of the bucket, gaps between parameters included."""
        return self.places[-1].stop if self.places else 0

    @cached_property
    def origins(self) -> dict[int, tuple[int, int]]:
        """Where each cut comes from, by its start: the entry, and how far in."""
        found: dict[int, tuple[int, int]] = {}
        for entry, place in zip(self.entries, self.places, strict=True):
            found |= {cut.start: (entry, cut.start - place.start) for cut in runs(place, CUT)}
        return found

    def find(self, block: Block) -> slice:
        """Where a block lies in the bucket."""
        start = self.places[self.entries.index(block.entry)].start
        return slice(start + block.start, start + block.stop)


@dataclass(frozen=True)
class Layout:
    """The flat space of some parameters; a function of their names and sizes alone, and so alike on all ranks."""

    entries: tuple[Entry, ...]
    buckets: tuple[Bucket, ...]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, in the order in which their buckets leave."""
        return tuple(block for bucket in self.buckets for block in bucket.blocks)

    @cached_property
    def cuts(self) -> int:
        """How many cuts there are."""
        return sum(len(bucket.cuts) for bucket in self.buckets)

    def entry_of_cut(self, number: int) -> Entry:
        """The parameter that a cut is of."""
        bucket = next(each for each in self.buckets if number < each.first_cut + len(each.cuts))
        entry, _ = bucket.origins[bucket.cuts[number - bucket.first_cut].start]
        return self.entries[entry]


def lay_out(entries: Sequence[Entry], bucket_elements: int) -> Layout:
    """Lay the parameters out, last first, as backward reaches them; a bucket is full at ``bucket_elements``."""
    if bucket_elements < 1:
        raise ConfigError(f"a bucket holds at least one element, not {bucket_elements}")
    filled: list[list[int]] = [[]]
    room = bucket_elements
    for number in reversed(range(len(entries))):
        if room <= 0:
            filled.append([])
            room = bucket_elements
        filled[-1].append(number)
        room -= entries[number].size
    return arrange(entries, [each for each in filled if each])


def arrange(entries: Sequence[Entry], filled: Sequence[Sequence[int]]) -> Layout:
    """Lay the parameters out in buckets that are given: the numbers of the entries in each."""
    if sorted(itertools.chain(*filled)) != list(range(len(entries))):
        raise ConfigError("every parameter belongs to one bucket: leave none out, and take none twice")
    buckets: list[Bucket] = []
    first = 0
    for numbers in filled:
        blocks = tuple(
            Block(number, part.start, part.stop) for number in numbers for part in _cut(entries[number].size)
        )
        places = _places([entries[number].size for number in numbers])
        cuts = tuple(cut for place in places for cut in runs(place, CUT))
        buckets.append(Bucket(tuple(numbers), places, blocks, cuts, first))
        first += len(cuts)
    return Layout(tuple(entries), tuple(buckets))


def _cut(size: int) -> list[slice]:
    return list(runs(slice(0, size), BLOCK)) or [slice(0, 0)]


def _places(sizes: Sequence[int]) -> tuple[slice, ...]:
    places, start = [], 0
    for size in sizes:
        places.append(slice(start, start + size))
        start += align(size)
    return tuple(places)
