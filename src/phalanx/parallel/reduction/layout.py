"""The layout of parameters in memory: which bucket each belongs to, and the blocks and chunks it is cut into."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from phalanx.buffers import CHUNK, DType, slices
from phalanx.errors import ConfigError

BLOCK = 2**18
"""The most elements of a block. An optimizer updates block after block, and each costs it some calls."""

GPU_BLOCK = 2**21
"""The same on a GPU, which is through with a block sooner than the CPU with the calls for it."""

BUCKET_BYTES = 8 << 20
"""What a bucket holds by default: it stays in the cache of a CPU."""

GPU_BUCKET_BYTES = 32 << 20
"""The same on a GPU, where each bucket costs the exchange some calls and a meeting."""

_ALIGNED = 64  # elements: a parameter begins at the start of a cache line, whatever its type


def align(size: int) -> int:
    """Return how many elements to set aside for ``size``, so that what follows begins at the start of a cache line."""
    return -(-size // _ALIGNED) * _ALIGNED


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter, or a module buffer, as the layout sees it.

    The mean gradient of a sharded parameter reaches only the owners of its blocks. Buffers leave after all gradients.
    """

    name: str
    size: int
    dtype: DType = DType.F32
    is_sharded: bool = False
    is_buffer: bool = False

    @property
    def kind(self) -> tuple[DType, bool, bool]:
        """What all parameters of a bucket have in common."""
        return self.dtype, self.is_sharded, self.is_buffer


@dataclass(frozen=True, slots=True)
class Block:
    """Some elements of one parameter, never of two: ``start`` and ``stop`` count within the parameter."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Parameters that are exchanged together: their numbers, the place of each, and the blocks they are cut into.

    ``chunks`` are slices of the bucket, each within one parameter; ``first_chunk`` is the number of the first among the
    chunks of all buckets.
    """

    parameters: tuple[int, ...]
    places: tuple[slice, ...]
    blocks: tuple[Block, ...]
    chunks: tuple[slice, ...]
    first_chunk: int
    dtype: DType
    is_sharded: bool
    is_buffer: bool

    @cached_property
    def length(self) -> int:
        """The elements of the bucket, gaps between parameters included."""
        end: int = self.places[-1].stop
        return end

    @cached_property
    def origins(self) -> tuple[tuple[int, int], ...]:
        """Where each chunk comes from: the number of the parameter, and how far in."""
        return tuple(
            (parameter, chunk.start - place.start)
            for parameter, place in zip(self.parameters, self.places, strict=True)
            for chunk in slices(place, CHUNK)
        )

    def find(self, block: Block) -> slice:
        """Return where a block lies in the bucket."""
        start = self.places[self.parameters.index(block.parameter)].start
        return slice(start + block.start, start + block.stop)


@dataclass(frozen=True)
class Layout:
    """The buckets of some parameters: a function of their specs alone, and so the same on all ranks."""

    parameters: tuple[ParameterSpec, ...]
    buckets: tuple[Bucket, ...]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, in the order in which their buckets leave."""
        return tuple(block for bucket in self.buckets for block in bucket.blocks)

    @cached_property
    def chunks(self) -> int:
        """How many chunks there are."""
        return sum(len(bucket.chunks) for bucket in self.buckets)

    def parameter_of_chunk(self, number: int) -> int:
        """Return the number of the parameter that a chunk belongs to."""
        bucket = next(each for each in self.buckets if number < each.first_chunk + len(each.chunks))
        return bucket.origins[number - bucket.first_chunk][0]


def lay_out(parameters: Sequence[ParameterSpec], bucket_bytes: int, block: int = BLOCK) -> Layout:
    """Fill buckets of about ``bucket_bytes`` with parameters of one kind, the last parameters first, as in backward.

    A block has at most ``block`` elements.
    """
    if bucket_bytes < 1:
        raise ConfigError(f"a bucket holds at least one byte, not {bucket_bytes}")
    alike: dict[tuple[DType, bool, bool], list[int]] = {}
    for number, spec in enumerate(parameters):
        alike.setdefault(spec.kind, []).append(number)
    filled = [bucket for numbers in alike.values() for bucket in _fill(parameters, numbers, bucket_bytes)]
    return arrange(parameters, filled, block)


def arrange(parameters: Sequence[ParameterSpec], filled: Sequence[Sequence[int]], block: int = BLOCK) -> Layout:
    """Lay parameters out in the given buckets, each a list of parameter numbers, in the order in which buckets leave.

    Backward reaches the first parameter of a bucket last. So a bucket leaves the sooner, the later in the model its
    first parameter is, and buckets of module buffers leave last. An empty bucket holds nothing and is left out.
    """
    if sorted(itertools.chain(*filled)) != list(range(len(parameters))):
        raise ConfigError("every parameter belongs to one bucket: leave none out, and take none twice")
    buckets: list[Bucket] = []
    first = 0
    for numbers in sorted(filter(None, filled), key=lambda each: (parameters[each[0]].is_buffer, -min(each))):
        specs = [parameters[number] for number in numbers]
        blocks = tuple(
            Block(number, part.start, part.stop) for number in numbers for part in _cut(parameters[number].size, block)
        )
        places = _places([spec.size for spec in specs])
        chunks = tuple(chunk for place in places for chunk in slices(place, CHUNK))
        buckets.append(Bucket(tuple(numbers), places, blocks, chunks, first, *specs[0].kind))
        first += len(chunks)
    return Layout(tuple(parameters), tuple(buckets))


def _fill(parameters: Sequence[ParameterSpec], numbers: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    filled: list[list[int]] = []
    room = 0
    for number in reversed(numbers):
        if room <= 0:
            filled.append([])
            room = bucket_bytes
        filled[-1].append(number)
        room -= parameters[number].size * parameters[number].dtype.itemsize
    return filled


def _cut(size: int, block: int) -> list[slice]:
    return list(slices(slice(0, size), block)) or [slice(0, 0)]


def _places(sizes: Sequence[int]) -> tuple[slice, ...]:
    places, start = [], 0
    for size in sizes:
        places.append(slice(start, start + size))
        start += align(size)
    return tuple(places)
