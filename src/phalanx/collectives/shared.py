"""Collectives in an arena: every rank shows what it has, and reads, or folds, what it needs.

A buffer that lies in the arena is shown as it is. Any other goes through the arena in runs: while the run that
everybody sees is being read, the next is already copied onto the other stage, so one meeting a run is enough.
Nobody ever writes what another rank shows: contributions stay intact.
"""

from collections.abc import Callable, Sequence

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, accumulate, even_part, fold
from phalanx.collectives.call import Call
from phalanx.collectives.plan import length_of
from phalanx.errors import CollectiveMismatch
from phalanx.transport import STAGE_BYTES, Arena, Epoch, Location, Post
from phalanx.wire import Signature

Cuts = Sequence[slice]
Work = Callable[[slice, int], None]


class ArenaRunner:
    """Carries out collectives for one rank in the arena of its host."""

    def __init__(self, arena: Arena, epoch: Epoch) -> None:
        self.arena = arena
        self._epoch = epoch

    def all_reduce(self, call: Call, source: Array, target: Array, op: ReduceOp, dtype: DType) -> None:
        """Write the reduction of all sources into every target; a target that all share is written once."""
        show = _Show(self, call, dtype, self._one_cut_each(source), len(source), source, target, keeps_own_part=True)
        if show.is_target_shared:
            show.run(self._fold_own_part(show, op, lambda run, _: target[run]), waits_at_end=True)
        else:
            self._reduce_in_runs(show, op, target)

    def reduce(self, call: Call, source: Array, target: Array | None, op: ReduceOp, dtype: DType) -> None:
        """Write the reduction of all sources into the target of the one rank that has one."""
        show = _Show(self, call, dtype, self._one_cut_each(source), len(source), source, keeps_own_part=True)
        self._reduce_in_runs(show, op, target)

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
        arena = self.arena
        show = _Show(self, call, dtype, [parts] * arena.size, length_of(parts[0]), source)
        combine = accumulate if is_partial else fold

        def work(run: slice, turn: int) -> None:
            if arena.index < len(parts):
                shown = [show.read(index, run, turn, arena.index) for index in range(arena.size)]
                combine(op, dtype, shown, target[run.start : run.start + len(shown[0])])

        show.run(work)

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
        longest = max((length_of(cut) for own in cuts for cut in own), default=0)
        show = _Show(self, call, dtype, cuts, longest, source)

        def work(run: slice, turn: int) -> None:
            for index, number, target in wanted:
                shown = show.read(index, run, turn, number)
                if len(shown):
                    np.copyto(target[run.start : run.start + len(shown)], shown)

        show.run(work)

    def barrier(self, call: Call) -> None:
        """Return when every rank of the host has called this."""
        self.open(call)

    def allocate(self, call: Call, size_bytes: int) -> Array:
        """Zeroed memory that all ranks of the host read and write."""
        shelf = self.arena.shelf
        if self.arena.index == 0:
            made, segment = shelf.create_shared(size_bytes)
            try:
                self.open(call, Location(segment.place.descriptor, segment.place.inode, 0))
                self.meet(call)
            finally:
                segment.release()  # everybody has mapped it by now, and it lasts as long as the arrays do
            return made
        location = self.open(call)[0].source
        assert location is not None, "the host's first rank always posts where it made the memory"
        made = shelf.map_shared(0, location, size_bytes)
        self.meet(call)
        return made

    def open(self, call: Call, source: Location | None = None, target: tuple[int, int] | None = None) -> list[Post]:
        """Begin a call: everybody says what it is, and must have said the same."""
        words = call.signature.pack()
        arena = self.arena
        arena.post(words, source, target)
        arena.wait(call.deadline, self._epoch, call)
        posts = arena.posts()
        for rank, post in zip(arena.ranks, posts, strict=True):
            if post.words != words:
                theirs = f"call {call.sequence}, {Signature.unpack(post.words)}"
                raise CollectiveMismatch.between(rank, theirs, arena.ranks[arena.index], call)
        return posts

    def meet(self, call: Call) -> None:
        """Wait until every rank of the host has come this far."""
        self.arena.meet(call.deadline, self._epoch, call)

    def _one_cut_each(self, source: Array) -> Sequence[Cuts]:
        return [(slice(0, len(source)),)] * self.arena.size

    def _fold_own_part(self, show: "_Show", op: ReduceOp, out: Callable[[slice, int], Array]) -> Work:
        arena = self.arena

        def work(run: slice, turn: int) -> None:
            part = even_part(length_of(run), arena.size, arena.index)
            shown = [show.read(index, run, turn)[part] for index in range(arena.size)]
            fold(op, show.dtype, shown, out(run, turn)[part])

        return work

    def _reduce_in_runs(self, show: "_Show", op: ReduceOp, target: Array | None) -> None:
        """Fold run by run into the arena's results, from where whoever has a target takes them."""

        def result(run: slice, turn: int) -> Array:
            return self.arena.result(turn)[: length_of(run) * show.dtype.itemsize].view(show.dtype.numpy)

        def collect(run: slice, turn: int) -> None:
            if target is not None:
                np.copyto(target[run], result(run, turn))

        show.run(self._fold_own_part(show, op, result), collect)


class _Show:
    """What all ranks of the host show in one call: made when everybody has begun it, then gone through run by run."""

    def __init__(
        self,
        runner: ArenaRunner,
        call: Call,
        dtype: DType,
        cuts: Sequence[Cuts],
        longest: int,
        source: Array | None,
        target: Array | None = None,
        *,
        keeps_own_part: bool = False,
    ) -> None:
        self.dtype = dtype
        self._keeps_own_part = keeps_own_part
        self._runner = runner
        self._arena = arena = runner.arena
        self._call = call
        self._cuts = cuts
        self._source = source
        self._longest = longest
        self._turn = arena.next_run()
        own_cuts = cuts[arena.index]
        location = arena.shelf.locate(source) if source is not None and own_cuts else None
        self._is_staging = bool(own_cuts) and location is None
        if self._is_staging:
            self._stage(0)
        shared = None if target is None else arena.shelf.locate_shared(target)
        self._posts = posts = runner.open(call, location, shared)
        self.is_target_shared = shared is not None
        self._has_direct = self._has_staged = False
        for post, shown in zip(posts, cuts, strict=True):  # one loop, since this is what a small call consists of
            self.is_target_shared &= post.target == shared
            self._has_direct |= post.source is not None
            self._has_staged |= post.source is None and len(shown) > 0

    def run(self, work: Work, collect: Work | None = None, *, waits_at_end: bool = False) -> None:
        """Do ``work`` on every run that everybody shows, and ``collect`` when everybody has done it."""
        length = self._run_length() if self._has_staged or collect else self._longest
        start = 0
        while True:
            run, turn = slice(start, min(start + length, self._longest)), self._turn
            work(run, turn)
            start = run.stop
            is_last = start >= self._longest
            if not is_last:
                self._turn = self._arena.next_run()
                if self._is_staging:
                    self._stage(start)
            # After the last run only those wait whose own buffer is being read, or who need all others' work: the
            # stage that was read last is not used again before everybody has begun the next call.
            if not is_last or collect or waits_at_end or self._has_direct:
                self._runner.meet(self._call)
            if collect:
                collect(run, turn)
            if is_last:
                return

    def read(self, index: int, run: slice, turn: int, number: int = 0) -> Array:
        """The run of cut ``number`` of the rank at ``index``; shorter, or empty, where that cut ends."""
        cut = self._cuts[index][number]
        start, stop = min(cut.start + run.start, cut.stop), min(cut.start + run.stop, cut.stop)
        if index == self._arena.index and self._source is not None:
            return self._source[start:stop]
        itemsize = self.dtype.itemsize
        location = self._posts[index].source
        if location is not None:
            shown = self._arena.shelf.read(index, location, start * itemsize, stop * itemsize)
        else:
            at = number * self._run_length() * itemsize
            shown = self._arena.stage(index, turn)[at : at + (stop - start) * itemsize]
        return shown.view(self.dtype.numpy)

    def _run_length(self) -> int:
        """Elements of each cut that fit on a stage at once."""
        most = max(map(len, self._cuts))
        return max(1, STAGE_BYTES // (self.dtype.itemsize * max(1, most)))

    def _stage(self, begin: int) -> None:
        """Copy the run that begins at ``begin`` of every cut onto this rank's stage."""
        assert self._source is not None, "a rank that shows something has a source"
        length, itemsize = self._run_length(), self.dtype.itemsize
        arena = self._arena
        stage = arena.stage(arena.index, self._turn)
        for number, cut in enumerate(self._cuts[arena.index]):
            data = self._source[min(cut.start + begin, cut.stop) : min(cut.start + begin + length, cut.stop)]
            at = number * length * itemsize
            shown = stage[at : at + data.nbytes].view(self.dtype.numpy)
            if self._keeps_own_part:  # nobody else reads the part that this rank folds
                part = even_part(len(data), arena.size, arena.index)
                np.copyto(shown[: part.start], data[: part.start])
                np.copyto(shown[part.stop :], data[part.stop :])
            else:
                np.copyto(shown, data)
