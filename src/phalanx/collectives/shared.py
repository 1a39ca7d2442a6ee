"""Collectives in an arena: every rank shows what it has, and reads, or folds, what it needs.

Nobody ever writes what another rank shows: contributions stay intact.
"""

from collections.abc import Callable, Sequence

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, accumulate, even_part, fold
from phalanx.collectives.call import Call
from phalanx.collectives.plan import length_of
from phalanx.collectives.staging import Agreement, Cuts, Staging, Work
from phalanx.errors import CollectiveMismatch, ConfigError
from phalanx.transport import Arena, Epoch, Location, Post
from phalanx.wire import Signature

_REMEMBERED = 256
"""How many different agreements are kept: a training step has as many as it has buckets."""


class ArenaRunner:
    """Carries out collectives for one rank in the arena of its host."""

    def __init__(self, arena: Arena, epoch: Epoch) -> None:
        self.arena = arena
        self._epoch = epoch
        self._agreements: dict[tuple[bytes, ...], Agreement] = {}

    def all_reduce(self, call: Call, source: Array, target: Array, op: ReduceOp, dtype: DType) -> None:
        """Write the reduction of all sources into every target; a target that all share is written once."""
        pool = self.arena.pool
        location, shared = pool.locate(source), pool.locate_shared(target)
        show = None if location else self._show_whole(source, None, dtype)
        agreement = self.open(call, location, shared)
        if agreement.needs_no_copy:
            self._fold_once(agreement, source, target, op, dtype)
            self.meet(call)
            return
        show = show or self._show_whole(source, location, dtype)
        if agreement.is_target_shared:
            work = self._fold_own_part(show, op, lambda run, _: target[run])
            show.run(agreement, lambda: self.meet(call), work, waits_at_end=True)
        else:
            self._reduce_in_runs(call, show, agreement, op, target)

    def reduce(self, call: Call, source: Array, target: Array | None, op: ReduceOp, dtype: DType) -> None:
        """Write the reduction of all sources into the target of the one rank that has one."""
        location = self.arena.pool.locate(source)
        show = self._show_whole(source, location, dtype)
        self._reduce_in_runs(call, show, self.open(call, location), op, target)

    def reduce_parts(
        self,
        call: Call,
        source: Array,
        parts: Cuts,
        target: Array,
        op: ReduceOp,
        dtype: DType,
        *,
        is_partial: bool = False,
    ) -> None:
        """Write the reduction of part r of all sources into the target of the host's rank r.

        If the reduction ``is_partial``, more will be folded in elsewhere: the target holds accumulators.
        """
        arena, combine = self.arena, accumulate if is_partial else fold
        location = arena.pool.locate(source)
        show = Staging(arena, dtype, [parts] * arena.size, source, location)

        def work(run: slice, turn: int) -> None:
            if arena.index < len(parts):
                shown = [show.read(index, run, turn, arena.index) for index in range(arena.size)]
                combine(op, dtype, shown, target[run.start : run.start + len(shown[0])])

        # The same elements may be cut in other places, if ranks have them in other shapes: so the cut is posted, too.
        agreement = self.open(call, location, (length_of(parts[0]), 0))
        for rank, post in zip(arena.ranks, agreement.posts, strict=True):
            if post.target != agreement.posts[arena.index].target:
                own_rank, ours = arena.ranks[arena.index], f"{call}, first part {length_of(parts[0])}"
                raise CollectiveMismatch.between(rank, f"{call}, first part {(post.target or (0,))[0]}", own_rank, ours)
        show.run(agreement, lambda: self.meet(call), work)

    def exchange(
        self,
        call: Call,
        source: Array | None,
        cuts: Sequence[Cuts],
        wanted: Sequence[tuple[int, int, Array]],
        dtype: DType,
    ) -> None:
        """Copy cuts of the sources: for each (rank's index, number of its cut, target) in ``wanted``.

        ``cuts`` has for each rank the cuts of its source, none if it only reads; it is alike on all ranks.
        """
        location = self.arena.pool.locate(source) if source is not None and cuts[self.arena.index] else None
        show = Staging(self.arena, dtype, cuts, source, location)

        def work(run: slice, turn: int) -> None:
            for index, number, target in wanted:
                shown = show.read(index, run, turn, number)
                if len(shown):
                    np.copyto(target[run.start : run.start + len(shown)], shown)

        show.run(self.open(call, location), lambda: self.meet(call), work)

    def barrier(self, call: Call) -> None:
        """Return when every rank of the host has called this."""
        self.open(call)

    def allocate(self, call: Call, size_bytes: int) -> Array:
        """Zeroed memory that all ranks of the host read and write."""
        pool = self.arena.pool
        if self.arena.index == 0:
            try:
                made, segment = pool.create_shared(size_bytes)
            except ConfigError:
                self.open(call)  # the others wait to hear where it is: nowhere
                raise
            try:
                self.open(call, Location(segment.place.descriptor, segment.place.inode, 0))
                self.meet(call)
            finally:
                segment.release()  # everybody has mapped it by now, and it lasts as long as the arrays do
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
        """Begin a call: everybody says what it is, and must have said the same."""
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
        """Return the elements that the rank at ``index`` has posted, not to be written."""
        if post.source is None:
            return np.empty(0, dtype.numpy)
        return self.arena.pool.read(index, post.source, 0, length * dtype.itemsize).view(dtype.numpy)

    def _compare(self, call: Call, posted: tuple[bytes, ...]) -> Agreement:
        posts = [Post.unpack(each) for each in posted]
        own = posts[self.arena.index]
        for rank, post in zip(self.arena.ranks, posts, strict=True):
            if post.words != own.words:
                theirs = f"call {call.sequence}, {Signature.unpack(post.words)}"
                raise CollectiveMismatch.between(rank, theirs, self.arena.ranks[self.arena.index], call)
        return Agreement(posts)

    def _show_whole(self, source: Array, location: Location | None, dtype: DType) -> Staging:
        cuts = [(slice(0, len(source)),)] * self.arena.size
        return Staging(self.arena, dtype, cuts, source, location, keeps_own_part=True)

    def _fold_once(self, agreement: Agreement, source: Array, target: Array, op: ReduceOp, dtype: DType) -> None:
        """Fold this rank's part of all sources straight into the shared target."""
        part, own = agreement.part, self.arena.index
        if part is None:
            part = agreement.part = even_part(len(source), self.arena.size, own)
            agreement.parts = [self._read_part(index, post, part, dtype) for index, post in enumerate(agreement.posts)]
        shown = agreement.parts.copy()
        shown[own] = source[part]
        fold(op, dtype, shown, target[part])

    def _read_part(self, index: int, post: Post, part: slice, dtype: DType) -> Array:
        if index == self.arena.index or post.source is None:
            return np.empty(0, dtype.numpy)  # a rank that drops its own buffer must not find it kept alive here
        start, stop = part.start * dtype.itemsize, part.stop * dtype.itemsize
        return self.arena.pool.read(index, post.source, start, stop).view(dtype.numpy)

    def _fold_own_part(self, show: Staging, op: ReduceOp, out: Callable[[slice, int], Array]) -> Work:
        arena = self.arena

        def work(run: slice, turn: int) -> None:
            part = even_part(length_of(run), arena.size, arena.index)
            shown = [show.read(index, run, turn)[part] for index in range(arena.size)]
            fold(op, show.dtype, shown, out(run, turn)[part])

        return work

    def _reduce_in_runs(
        self, call: Call, show: Staging, agreement: Agreement, op: ReduceOp, target: Array | None
    ) -> None:
        """Fold run by run into the arena's results, from where whoever has a target takes them."""

        def result(run: slice, turn: int) -> Array:
            return self.arena.result(turn)[: length_of(run) * show.dtype.itemsize].view(show.dtype.numpy)

        def collect(run: slice, turn: int) -> None:
            if target is not None:
                np.copyto(target[run], result(run, turn))

        show.run(agreement, lambda: self.meet(call), self._fold_own_part(show, op, result), collect)
