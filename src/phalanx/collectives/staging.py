"""Staging: how the ranks of a host let each other read their buffers in one call, chunk by chunk.

A buffer that lies in the arena is read where it is. Any other is copied through the arena in chunks. Each rank has two
staging buffers: while the others read one, the rank copies its next chunk into the other. So the ranks need to meet
only once for each chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.buffers import Array, DType, even_part
from phalanx.collectives.plan import length_of
from phalanx.transport import Arena, Location, Post

Parts = Sequence[slice]
Work = Callable[[slice, int], None]
"""What to do with a chunk, which lies in the first or second staging buffer (0 or 1) of each rank that copies."""


@dataclass(slots=True)
class Agreement:
    """What all ranks posted when they began a call. If they post the same again, all buffers lie where they lay before.

    ``part`` is the part that this rank folds, and ``parts`` has this part of every peer's buffer. The first call looks
    them up.
    """

    posts: Sequence[Post]
    is_target_shared: bool = field(init=False)
    has_direct: bool = field(init=False)
    needs_no_copy: bool = field(init=False)
    part: slice | None = None
    parts: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        target = self.posts[0].target
        self.is_target_shared = target is not None and all(post.target == target for post in self.posts)
        self.has_direct = any(post.source for post in self.posts)
        self.needs_no_copy = self.is_target_shared and all(post.source for post in self.posts)


class Staging:
    """The buffers of one call, as one rank reads them: its own buffer and those of its peers.

    ``parts`` has, for each rank of the host, the parts of its buffer that others read; none if the rank only reads. It
    is the same on all ranks. ``location`` is where this rank's own buffer lies in the arena, or None. In that case the
    first chunk is copied at once. A rank that ``keeps_own_part`` folds its own part of every chunk itself, so this part
    is not copied.
    """

    def __init__(
        self,
        arena: Arena,
        dtype: DType,
        parts: Sequence[Parts],
        source: Array | None,
        location: Location | None,
        *,
        keeps_own_part: bool = False,
    ) -> None:
        self.dtype = dtype
        self._arena = arena
        self._parts = parts
        self._source = source
        self._keeps_own_part = keeps_own_part
        self._longest = max((length_of(part) for own in parts for part in own), default=0)
        self._posts: Sequence[Post] = ()
        self._half = arena.next_half()
        self._is_staging = location is None and len(parts[arena.index]) > 0
        if self._is_staging:
            self._copy(0)

    def for_each_chunk(
        self,
        agreement: Agreement,
        meet: Callable[[], None],
        work: Work,
        collect: Work | None = None,
        *,
        waits_at_end: bool = False,
    ) -> None:
        """Do ``work`` on every chunk of the longest part, and ``collect`` when all ranks have done theirs."""
        self._posts = agreement.posts
        has_copied = any(post.source is None and parts for post, parts in zip(self._posts, self._parts, strict=True))
        length = self._chunk_length() if has_copied or collect else self._longest
        start = 0
        while True:
            chunk, half = slice(start, min(start + length, self._longest)), self._half
            work(chunk, half)
            start = chunk.stop
            is_last = start >= self._longest
            if not is_last:
                self._half = self._arena.next_half()
                if self._is_staging:
                    self._copy(start)
            # After the last chunk, a rank waits only if others read its own buffer or if it needs the others' work.
            # The staging buffer that was read last is not used again before all ranks have begun the next call.
            if not is_last or collect or waits_at_end or agreement.has_direct:
                meet()
            if collect:
                collect(chunk, half)
            if is_last:
                return

    def read(self, index: int, chunk: slice, half: int, number: int = 0) -> Array:
        """Return a chunk of part ``number`` of the rank at ``index``; it is shorter, or empty, where the part ends."""
        part = self._parts[index][number]
        start, stop = min(part.start + chunk.start, part.stop), min(part.start + chunk.stop, part.stop)
        if index == self._arena.index and self._source is not None:
            return self._source[start:stop]
        itemsize = self.dtype.itemsize
        location = self._posts[index].source
        if location is not None:
            found = self._arena.pool.read(index, location, start * itemsize, stop * itemsize)
        else:
            at = number * self._chunk_length() * itemsize
            found = self._arena.staging(index, half)[at : at + (stop - start) * itemsize]
        return found.view(self.dtype.numpy)

    def _chunk_length(self) -> int:
        """Return how many elements of every part fit into a chunk together."""
        most = max(map(len, self._parts))
        return max(1, self._arena.chunk_bytes // (self.dtype.itemsize * max(1, most)))

    def _copy(self, begin: int) -> None:
        """Copy the chunk that begins at ``begin``, of every part, into this rank's staging buffer."""
        assert self._source is not None, "a rank whose buffer others read has a source"
        arena, length, itemsize = self._arena, self._chunk_length(), self.dtype.itemsize
        buffer = arena.staging(arena.index, self._half)
        for number, part in enumerate(self._parts[arena.index]):
            data = self._source[min(part.start + begin, part.stop) : min(part.start + begin + length, part.stop)]
            at = number * length * itemsize
            copy = buffer[at : at + data.nbytes].view(self.dtype.numpy)
            kept = even_part(len(data), arena.size, arena.index) if self._keeps_own_part else slice(0, 0)
            np.copyto(copy[: kept.start], data[: kept.start])
            np.copyto(copy[kept.stop :], data[kept.stop :])
