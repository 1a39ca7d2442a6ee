"""Blocks of a buffer that belong to ranks: who owns which, and everybody getting them from their owners."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from phalanx.buffers import Array, DType
from phalanx.collectives import direct
from phalanx.collectives.call import Call
from phalanx.collectives.plan import length_of
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.shared import ArenaRunner
from phalanx.errors import ConfigError

Shard = Sequence[slice]
"""What one rank owns of a buffer, in as few slices as it can be had."""


def cut_shards(blocks: Sequence[slice], owners: Sequence[int], size: int) -> list[Shard]:
    """The shard of each rank, where ``owners`` has a rank for each of the blocks, which come in order."""
    owned: list[list[slice]] = [[] for _ in range(size)]
    for block, owner in zip(blocks, owners, strict=True):
        owned[owner].append(block)
    return [join_neighbours(each) for each in owned]


def join_neighbours(blocks: Iterable[slice]) -> Shard:
    """The same elements in as few slices as possible; the blocks come in order."""
    joined: list[slice] = []
    for block in blocks:
        if joined and joined[-1].stop == block.start:
            joined[-1] = slice(joined[-1].start, block.stop)
        else:
            joined.append(block)
    return joined


def end_to_end(lengths: Iterable[int]) -> list[slice]:
    """Slices of these lengths, each beginning where the one before it ends."""
    ends = itertools.accumulate(lengths, initial=0)
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


def broadcast_in_arena(runner: ArenaRunner, call: Call, array: Array, shards: Sequence[Shard]) -> None:
    """Copy every other rank's shard straight from its array, which lies in the arena.

    Nobody writes what another rank reads: a rank's own shard is the only one that it leaves alone.
    """
    arena = runner.arena
    location = arena.pool.locate(array)
    if location is None and len(array):
        raise ConfigError("the array of a broadcast_blocks comes from group.allocate(...)")
    agreement = runner.open(call, location, is_patient=True)
    for index, shard in enumerate(shards):
        source = agreement.posts[index].source
        if index == arena.index or source is None:
            continue
        shown = arena.pool.read(index, source, 0, array.nbytes).view(array.dtype)
        for each in shard:
            np.copyto(array[each], shown[each])
    runner.meet(call, is_patient=True)


def broadcast_over_links(runner: LinkRunner, call: Call, array: Array, shards: Sequence[Shard], dtype: DType) -> None:
    """Send the own shard to everybody: as it lies where every shard is one slice, else packed."""
    rank = runner.rank
    if all(len(shard) < 2 for shard in shards):
        runner.run(direct.all_gather(rank, [_around(shard) for shard in shards]), call, array, array, dtype)
        return
    packing = iter(end_to_end(length_of(each) for shard in shards for each in shard))
    places = [[next(packing) for _ in shard] for shard in shards]
    packed = np.empty(sum(length_of(_around(each)) for each in places), dtype.numpy)
    for each, place in zip(shards[rank], places[rank], strict=True):
        packed[place] = array[each]
    runner.run(direct.all_gather(rank, [_around(each) for each in places]), call, packed, packed, dtype)
    for peer in runner.links:
        for each, place in zip(shards[peer], places[peer], strict=True):
            array[each] = packed[place]


def _around(shard: Shard) -> slice:
    """From the first of these slices to the last."""
    return slice(shard[0].start, shard[-1].stop) if shard else slice(0, 0)
