"""What the ranks of a host show each other in one call, and going through it run by run.

A buffer that lies in the arena is shown as it is. Any other goes through the arena in runs: while the run that
everybody sees is being read, the next is already copied onto the other stage, so one meeting a run is enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.buffers import Array, DType, even_part
from phalanx.collectives.plan import length_of
from phalanx.transport import STAGE_BYTES, Arena, Location, Post

Cuts = Sequence[slice]
Work = Callable[[slice, int], None]


@dataclass(slots=True)
class Agreement:
    """What all ranks said when they began a call; whenever they say it again, everything lies where it lay before.

    ``part`` is what this rank folds, and ``parts`` are those parts of its peers' buffers, looked up the first time.
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
    """One rank's side of a call: its own buffer, of which it stages the first run at once if it must, and its peers'.

    ``cuts`` has for each rank of the host the cuts of its buffer, none if it only reads; all ranks have the same.
    ``location`` is where this rank's own buffer lies in the arena, if it does. A rank that ``keeps_own_part`` folds its
    own part of every run itself, so nobody else needs to see that.
    """

    def __init__(
        self,
        arena: Arena,
        dtype: DType,
        cuts: Sequence[Cuts],
        source: Array | None,
        location: Location | None,
        *,
        keeps_own_part: bool = False,
    ) -> None:
        self.dtype = dtype
        self._arena = arena
        self._cuts = cuts
        self._source = source
        self._keeps_own_part = keeps_own_part
        self._longest = max((length_of(cut) for own in cuts for cut in own), default=0)
        self._posts: Sequence[Post] = ()
        self._turn = arena.next_run()
        self._is_staging = location is None and len(cuts[arena.index]) > 0
        if self._is_staging:
            self._stage(0)

    def run(
        self,
        agreement: Agreement,
        meet: Callable[[], None],
        work: Work,
        collect: Work | None = None,
        *,
        waits_at_end: bool = False,
    ) -> None:
        """Do ``work`` on every run that everybody shows, and ``collect`` when everybody has done it."""
        self._posts = agreement.posts
        has_staged = any(post.source is None and shown for post, shown in zip(self._posts, self._cuts, strict=True))
        length = self._run_length() if has_staged or collect else self._longest
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
            if not is_last or collect or waits_at_end or agreement.has_direct:
                meet()
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
            shown = self._arena.pool.read(index, location, start * itemsize, stop * itemsize)
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
        arena, length, itemsize = self._arena, self._run_length(), self.dtype.itemsize
        stage = arena.stage(arena.index, self._turn)
        for number, cut in enumerate(self._cuts[arena.index]):
            data = self._source[min(cut.start + begin, cut.stop) : min(cut.start + begin + length, cut.stop)]
            at = number * length * itemsize
            shown = stage[at : at + data.nbytes].view(self.dtype.numpy)
            kept = even_part(len(data), arena.size, arena.index) if self._keeps_own_part else slice(0, 0)
            np.copyto(shown[: kept.start], data[: kept.start])
            np.copyto(shown[kept.stop :], data[kept.stop :])
