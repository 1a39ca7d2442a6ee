"""Cutting a length into slices: near-equal parts, the lanes of a rank, cache-sized chunks."""

import itertools
from collections.abc import Iterable, Iterator

from phalanx.errors import ConfigError

CHUNK = 2**16
"""The most elements of a chunk: few enough to stay in a core's cache, enough to hide the cost of a call to numpy."""


def even_parts(length: int, count: int) -> tuple[slice, ...]:
    """Return ``count`` consecutive slices that cover ``length``, the first ``length % count`` one element longer."""
    if length < 0:
        raise ConfigError(f"a buffer cannot hold {length} elements: lengths begin at zero")
    if count < 1:
        raise ConfigError(f"cannot cut a buffer into {count} parts: ask for at least one")
    return tuple(even_part(length, count, index) for index in range(count))


def even_part(length: int, count: int, index: int) -> slice:
    """Return part ``index`` of ``even_parts(length, count)`` without making the others."""
    size, longer = divmod(length, count)
    start = index * size + min(index, longer)
    return slice(start, start + size + (index < longer))


def consecutive(lengths: Iterable[int]) -> list[slice]:
    """Return slices of these lengths, one after another from 0 on."""
    return [slice(start, stop) for start, stop in itertools.pairwise(itertools.accumulate(lengths, initial=0))]


def own_lanes(lanes: int, size: int, rank: int) -> range:
    """Return the lanes that ``rank`` of ``size`` ranks computes: consecutive ones, as even as possible."""
    part = even_part(lanes, size, rank)
    return range(part.start, part.stop)


def slices(part: slice, length: int) -> Iterator[slice]:
    """Yield consecutive slices of at most ``length`` elements that cover ``part``."""
    if length < 1:
        raise ConfigError(f"cannot cut a buffer into slices of {length} elements: ask for at least one")
    return (slice(start, min(start + length, part.stop)) for start in range(part.start, part.stop, length))
