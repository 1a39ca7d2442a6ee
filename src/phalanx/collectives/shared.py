"""Collectives in an arena: every rank reads the other ranks' buffers, and copies or folds what it needs.

No rank ever writes another rank's buffer, so contributions stay as they are.
"""

from collections.abc import Callable, Sequence

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, accumulate, even_part, fold
from phalanx.collectives.call import Call
from phalanx.collectives.plan import length_of
from phalanx.collectives.staging import Agreement, Parts, Staging, Work
from phalanx.errors import BadFrame, CollectiveMismatch, ConfigError
from phalanx.transport import Arena, Epoch, Location, Post
from phalanx.wire import Signature

_REMEMBERED = 256
"""How many agreements are kept. A training step has one for each bucket."""

SMALL_BYTES = 1 << 18
"""If all ranks' buffers together are no longer, each rank folds all of them: that costs less than to meet again."""


class ArenaRunner:
    """Carries out collectives for one rank in the arena of its host."""

    def __init__(self, arena: Arena, epoch: Epoch) -> None:
        self.arena = arena
        self._epoch = epoch
        self._agreements: dict[tuple[bytes, ...], Agreement] = {}
        self._small: dict[tuple[DType, int], tuple[list[Array], list[Array]]] = {}  # staging by type and length

    def all_reduce(self, call: Call, source: Array, target: Array, op: ReduceOp, dtype: DType) -> None:
        """Write the reduction of all sources into every target. A target that all ranks share is written once."""
        pool = self.arena.pool
        location, shared = pool.locate(source), pool.locate_shared(target)
        if source.nbytes * self.arena.size <= SMALL_BYTES:
            self._all_reduce_small(call, source, target, op, dtype, location if shared else None, shared)
            return
        staging = None if location else self._stage(source, None, dtype)
        agreement = self.open(call, location, shared)
        if agreement.needs_no_copy:
            self._fold_once(agreement, source, target, op, dtype)
            self.meet(call)
            return
        staging = staging or self._stage(source, location, dtype)
        if agreement.is_target_shared:
            work = self._fold_own_part(staging, op, lambda chunk, _: target[chunk])
            staging.for_each_chunk(agreement, lambda: self.meet(call), work, waits_at_end=True)
        else:
            self._reduce_in_chunks(call, staging, agreement, op, target)

    def reduce(self, call: Call, source: Array, target: Array | None, op: ReduceOp, dtype: DType) -> None:
        """Write the reduction of all sources into the target of the one rank that has a target."""
        location = self.arena.pool.locate(source)
        staging = self._stage(source, location, dtype)
        self._reduce_in_chunks(call, staging, self.open(call, location), op, target)

    def reduce_parts(
        self,
        call: Call,
        source: Array,
        parts: Parts,
        target: Array,
        op: ReduceOp,
        dtype: DType,
        *,
        is_partial: bool = False,
    ) -> None:
        """Write the reduction of part r of all sources into the target of the host's rank r.

        If the reduction ``is_partial``, the target gets accumulators: they are folded with others later.
        """
        arena, combine = self.arena, accumulate if is_partial else fold
        location = arena.pool.locate(source)
        staging = Staging(arena, dtype, [parts] * arena.size, source, location)

        def work(chunk: slice, half: int) -> None:
            if arena.index < len(parts):
                inputs = [staging.read(index, chunk, half, arena.index) for index in range(arena.size)]
                combine(op, dtype, inputs, target[chunk.start : chunk.start + len(inputs[0])])

        # Arrays of different shapes may have equally many elements but different parts. So the parts are compared, too.
        agreement = self.open(call, location, (length_of(parts[0]), 0))
        for rank, post in zip(arena.ranks, agreement.posts, strict=True):
            if post.target != agreement.posts[arena.index].target:
                own_rank, ours = arena.ranks[arena.index], f"{call}, first part {length_of(parts[0])}"
                raise CollectiveMismatch.between(rank, f"{call}, first part {(post.target or (0,))[0]}", own_rank, ours)
        staging.for_each_chunk(agreement, lambda: self.meet(call), work)

    def exchange(
        self,
        call: Call,
        source: Array | None,
        parts: Sequence[Parts],
        wanted: Sequence[tuple[int, int, Array]],
        dtype: DType,
    ) -> None:
        """Copy parts of the sources: one for each (rank's index, number of its part, target) in ``wanted``.

        ``parts`` has for each rank the parts of its source, none if it only reads. It is the same on all ranks.
        """
        location = self.arena.pool.locate(source) if source is not None and parts[self.arena.index] else None
        staging = Staging(self.arena, dtype, parts, source, location)

        def work(chunk: slice, half: int) -> None:
            for index, number, target in wanted:
                found = staging.read(index, chunk, half, number)
                if len(found):
                    np.copyto(target[chunk.start : chunk.start + len(found)], found)

        staging.for_each_chunk(self.open(call, location), lambda: self.meet(call), work)

    def barrier(self, call: Call) -> None:
        """Return when every rank of the host has called this."""
        self.open(call)

    def allocate(self, call: Call, size_bytes: int) -> Array:
        """Return zeroed memory that all ranks of the host read and write."""
        pool = self.arena.pool
        if self.arena.index == 0:
            try:
                made, segment = pool.create_shared(size_bytes)
            except ConfigError:
                self.open(call)  # tells the others, which wait to hear where it is
                raise
            try:
                self.open(call, Location(segment.place.descriptor, segment.place.inode, 0))
                self.meet(call)
            finally:
                segment.release()  # all ranks have mapped it by now, and it lasts as long as their arrays
            return made
        location = self.open(call).posts[0].source
        if location is None:
            raise ConfigError(
                f"rank {self.arena.ranks[0]} could not have {size_bytes} bytes of shared memory: ask for less"
            )
        made = pool.map_shared(0, location, size_bytes)
        self.meet(call)
        return made

    def open(
        self,
        call: Call,
        source: Location | None = None,
        target: tuple[int, int] | None = None,
        *,
        is_patient: bool = False,
    ) -> Agreement:
        """Begin a call: post its signature, wait for the other ranks, and compare. Raises CollectiveMismatch."""
        arena = self.arena
        arena.post(call.signature.pack(), source, target)
        arena.wait(call.deadline, self._epoch, call, is_patient=is_patient)
        posted = arena.posts()
        agreement = self._agreements.get(posted)
        if agreement is None:
            if len(self._agreements) == _REMEMBERED:
                self._agreements.clear()
            agreement = self._agreements[posted] = self._compare(call, posted)
        return agreement

    def meet(self, call: Call, *, is_patient: bool = False) -> None:
        """Wait until every rank of the host has come this far."""
        self.arena.meet(call.deadline, self._epoch, call, is_patient=is_patient)

    def read(self, index: int, post: Post, length: int, dtype: DType) -> Array:
        """Return the elements that the rank at ``index`` has posted. Only that rank may write them."""
        if post.source is None:
            return np.empty(0, dtype.numpy)
        return self.arena.pool.read(index, post.source, 0, length * dtype.itemsize).view(dtype.numpy)

    def _compare(self, call: Call, posted: tuple[bytes, ...]) -> Agreement:
        posts = [Post.unpack(each) for each in posted]
        # Not with this rank's own post: if that was damaged, the others say so, and this rank must not blame them.
        own, words = self.arena.index, call.signature.pack()
        for index, post in enumerate(posts):
            if index != own and post.words != words:
                raise self._mismatch(call, self.arena.ranks[index], post.words)
        return Agreement(posts)

    def _mismatch(self, call: Call, rank: int, words: bytes) -> BadFrame | CollectiveMismatch:
        own = self.arena.ranks[self.arena.index]
        try:
            theirs = f"call {call.sequence}, {Signature.unpack(words)}"
        except BadFrame as error:
            return BadFrame(f"rank {rank} posted bytes that are no call, instead of {call}: {error}", peer=rank)
        return CollectiveMismatch.between(rank, theirs, own, call)

    def _stage(self, source: Array, location: Location | None, dtype: DType) -> Staging:
        """Let the others read all of ``source``, of which this rank folds its own part."""
        whole = [(slice(0, len(source)),)] * self.arena.size
        return Staging(self.arena, dtype, whole, source, location, keeps_own_part=True)

    def _all_reduce_small(
        self,
        call: Call,
        source: Array,
        target: Array,
        op: ReduceOp,
        dtype: DType,
        location: Location | None,
        shared: tuple[int, int] | None,
    ) -> None:
        """Have every rank fold all sources by itself, so that the ranks meet only once."""
        buffers = self._small_buffers(dtype, len(source))
        if not location:
            np.copyto(buffers[self.arena.index], source)
        agreement = self.open(call, location, shared)
        if agreement.needs_no_copy:
            self._fold_once(agreement, source, target, op, dtype)
            self.meet(call)
        elif agreement.has_direct:  # others still read the buffers into which this rank may write the result
            posts = enumerate(agreement.posts)
            inputs = [self.read(i, post, len(source), dtype) if post.source else buffers[i] for i, post in posts]
            inputs[self.arena.index] = source
            result = np.empty_like(target)
            fold(op, dtype, inputs, result)
            self.meet(call)
            np.copyto(target, result)
        else:
            fold(op, dtype, buffers, target)

    def _small_buffers(self, dtype: DType, length: int) -> list[Array]:
        """Return the staging buffers of all ranks for one call, cut to a length."""
        arena, found = self.arena, self._small.get((dtype, length))
        if found is None:
            if len(self._small) == _REMEMBERED:
                self._small.clear()
            first, second = (
                [arena.staging(index, half)[: length * dtype.itemsize].view(dtype.numpy) for index in range(arena.size)]
                for half in range(2)
            )
            found = self._small[dtype, length] = first, second
        return found[arena.next_half()]

    def _fold_once(self, agreement: Agreement, source: Array, target: Array, op: ReduceOp, dtype: DType) -> None:
        """Fold this rank's part of all sources straight into the shared target."""
        part, own = agreement.part, self.arena.index
        if part is None:
            part = agreement.part = even_part(len(source), self.arena.size, own)
            agreement.parts = [self._read_part(index, post, part, dtype) for index, post in enumerate(agreement.posts)]
        inputs = agreement.parts.copy()
        inputs[own] = source[part]
        fold(op, dtype, inputs, target[part])

    def _read_part(self, index: int, post: Post, part: slice, dtype: DType) -> Array:
        if index == self.arena.index or post.source is None:
            return np.empty(0, dtype.numpy)  # a reference here would keep the rank's own buffer alive
        start, stop = part.start * dtype.itemsize, part.stop * dtype.itemsize
        return self.arena.pool.read(index, post.source, start, stop).view(dtype.numpy)

    def _fold_own_part(self, staging: Staging, op: ReduceOp, out: Callable[[slice, int], Array]) -> Work:
        arena = self.arena

        def work(chunk: slice, half: int) -> None:
            part = even_part(length_of(chunk), arena.size, arena.index)
            inputs = [staging.read(index, chunk, half)[part] for index in range(arena.size)]
            fold(op, staging.dtype, inputs, out(chunk, half)[part])

        return work

    def _reduce_in_chunks(
        self, call: Call, staging: Staging, agreement: Agreement, op: ReduceOp, target: Array | None
    ) -> None:
        """Fold chunk by chunk into the arena's results. Ranks that have a target copy the results from there."""

        def result(chunk: slice, half: int) -> Array:
            return self.arena.result(half)[: length_of(chunk) * staging.dtype.itemsize].view(staging.dtype.numpy)

        def collect(chunk: slice, half: int) -> None:
            if target is not None:
                np.copyto(target[chunk], result(chunk, half))

        work = self._fold_own_part(staging, op, result)
        staging.for_each_chunk(agreement, lambda: self.meet(call), work, collect)
