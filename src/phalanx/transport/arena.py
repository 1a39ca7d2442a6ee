"""The memory that the ranks of one host share: flags to meet at, words to compare, and buffers.

Every rank owns one *board*, which it alone can write and its peers can read. The board says how many meetings the
rank has come to. For the rank's latest two calls it says what the rank is doing and where its data lies. Behind that
is room for chunks of data that lie outside the arena. All ranks write the *results*. They are new in every epoch: a
rank that was stopped and evicted, and wakes up, can only write where nobody reads any more.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.errors import DeadlineExceeded, PeerLost
from phalanx.transport import futex, membarrier
from phalanx.transport.cpus import usable_cpus
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch, Wait
from phalanx.transport.lifeline import LIFELINE_BYTES, Lifeline
from phalanx.transport.segment import PAGE_BYTES, Place, Segment, map_segment
from phalanx.transport.segment_pool import Location, SegmentPool
from phalanx.transport.serial_executor import is_in_background

Bytes = npt.NDArray[np.uint8]

HALF_BYTES = 4 << 20  # of the memory through which a rank copies data: one half is written while the other is read
_SMALLEST_CHUNK_BYTES = 1 << 20
_CHUNKS_BYTES = 16 << 20  # of all ranks together: more would leave the cache before it is read
WORDS_BYTES = 16  # what a rank says about its call, beside where its data lies

_SLOT = struct.Struct(
    f"<{WORDS_BYTES}sQQQQQ"
)  # words; descriptor, inode, offset of the input; inode, offset of the output
_SLOT_SPANS = (
    (64, 64 + _SLOT.size),
    (128, 128 + _SLOT.size),
)  # two, since a fast rank may post its next call while a slow one still reads this one
_NOWHERE = 2**64 - 1
_NO_LOCATION = (0, 0, _NOWHERE)
_NO_TARGET = (0, _NOWHERE)

_SPINS = 100
_YIELDS = 100  # not more: on a crowded machine a single one may take milliseconds
_NAP_S = 5e-3  # a sleeper is woken, so this is only how often it checks whether the epoch still holds
_FIRST_NAP_S, _LONGEST_NAP_S = (_NAP_S, _NAP_S) if futex.IS_THERE else (20e-6, 1e-3)
_NOTHING: Bytes = np.empty(0, np.uint8)
_COUNT, _HAS_CLOSED, _IS_NAPPING = range(3)  # the first words of a board
_LIFELINE = 32  # where a board has its rank's lifeline


class Post(NamedTuple):
    """What one rank said about its call: the words, and where its input and output lie, if they are in the arena."""

    words: bytes
    source: Location | None
    target: tuple[int, int] | None

    @classmethod
    def unpack(cls, posted: bytes) -> "Post":
        """Read a post from the bytes on a board."""
        words, descriptor, inode, offset, target_inode, target_offset = _SLOT.unpack(posted)
        source = None if offset == _NOWHERE else Location(descriptor, inode, offset)
        return cls(words, source, None if target_offset == _NOWHERE else (target_inode, target_offset))


@dataclass(frozen=True, slots=True)
class ArenaSegments:
    """The memory that a rank brings to an arena; its peers need to know where it is."""

    board: Segment
    results: Segment

    @classmethod
    def create(cls) -> "ArenaSegments":
        """Make a board, and results, which are used if this rank is the first of its host."""
        return cls(Segment.create(PAGE_BYTES + 2 * HALF_BYTES), Segment.create(2 * HALF_BYTES))

    def release(self) -> None:
        """Close the descriptors; memory that is still mapped stays."""
        self.board.release()
        self.results.release()


class Arena:
    """The shared memory of the ranks of one host, as the rank at ``index`` sees it.

    Raises ``OSError`` where a peer's memory is out of reach.
    """

    def __init__(
        self, own: ArenaSegments, index: int, ranks: Sequence[int], boards: Sequence[Place], results: Place
    ) -> None:
        self.index = index
        self.ranks = tuple(ranks)
        self.waited_s = dict.fromkeys(ranks, 0.0)
        self.pool = SegmentPool(self.ranks, [place.pid for place in boards])
        self._boards = [
            own.board.memory if position == index else map_segment(place, writable=False)
            for position, place in enumerate(boards)
        ]
        self._counts = [memoryview(board).cast("Q") for board in self._boards]
        self._addresses = [np.frombuffer(board, np.uint8).ctypes.data for board in self._boards]
        shared = own.results.memory if index == 0 else map_segment(results, writable=True)
        self._halves = [_halves(board, PAGE_BYTES) for board in self._boards]
        self._results = _halves(shared, 0)
        self._meetings = 0
        self._calls = 0
        self._chunks = 0
        self._lifeline: Lifeline | None = None
        cpus = usable_cpus()
        self._spins = _SPINS if len(ranks) <= cpus else 0  # spinning would steal the core a peer needs
        self._is_crowded = 2 * len(ranks) > cpus  # by a thread of each rank that exchanges while another computes

    @property
    def size(self) -> int:
        """How many ranks share this memory."""
        return len(self.ranks)

    @property
    def chunk_bytes(self) -> int:
        """How much a rank copies at a time. Larger chunks need fewer meetings; many ranks get smaller ones."""
        return min(HALF_BYTES, max(_SMALLEST_CHUNK_BYTES, _CHUNKS_BYTES // self.size))

    def watch(self, on_death: Callable[[int], None]) -> None:
        """Watch the next rank of the host from now on. ``on_death`` gets its number if its process dies."""
        next_index = (self.index + 1) % self.size
        own, other = (
            np.frombuffer(self._boards[index], np.uint8, LIFELINE_BYTES, _LIFELINE)
            for index in (self.index, next_index)
        )
        self._lifeline = Lifeline(own, other, lambda: on_death(self.ranks[next_index]))

    # Meeting

    def post(self, words: bytes, source: Location | None = None, target: tuple[int, int] | None = None) -> None:
        """Say what this rank's next call is, and come to the meeting that begins it."""
        self._calls += 1
        where = (*(source or _NO_LOCATION), *(target or _NO_TARGET))
        _SLOT.pack_into(self._boards[self.index], _SLOT_SPANS[self._calls % 2][0], words, *where)
        self.arrive()

    def posts(self) -> tuple[bytes, ...]:
        """Return what every rank said about the call they have met for, by index: ``Post.unpack`` reads it."""
        start, stop = _SLOT_SPANS[self._calls % 2]
        return tuple([board[start:stop] for board in self._boards])

    def arrive(self) -> None:
        """Come to the next meeting without waiting for the others."""
        if membarrier.IS_NEEDED:
            membarrier.order_memory()  # whoever sees the new count sees all that was written before it
        self._meetings += 1
        self._counts[self.index][_COUNT] = self._meetings
        for count in self._counts:
            if count[_IS_NAPPING]:  # if this is seen too late, the sleeper sleeps to the end of its time
                futex.wake(self._addresses[self.index])
                break

    def wait(self, deadline: Deadline, epoch: Epoch, during: object, *, is_patient: bool = False) -> None:
        """Wait until all ranks of the host have come to the meeting this rank came to last.

        A patient waiter sleeps immediately instead of spinning first, and so leaves its CPU to other threads. On a
        crowded machine, whoever exchanges in the background is patient.
        """
        meeting = self._meetings
        for index, count in enumerate(self._counts):
            if count[_COUNT] < meeting:
                self._wait_for(index, meeting, deadline, epoch, during, is_patient=is_patient)

    def meet(self, deadline: Deadline, epoch: Epoch, during: object, *, is_patient: bool = False) -> None:
        """Come to the next meeting and wait for all ranks. What a rank wrote before it, all can read after it."""
        self.arrive()
        self.wait(deadline, epoch, during, is_patient=is_patient)

    # Copying through the arena

    def next_half(self) -> int:
        """Return which half the next chunk goes through; all ranks count chunks alike."""
        self._chunks += 1
        return self._chunks % 2

    def staging(self, index: int, half: int) -> Bytes:
        """Return the room for one chunk of the rank at ``index``; only that rank can write it."""
        return self._halves[index][half]

    def result(self, half: int) -> Bytes:
        """Return the room for one chunk of results, which all ranks write and read."""
        return self._results[half]

    def close(self) -> None:
        """Say on the board that this rank has left, then close and unmap everything. Arrays keep their memory alive.

        Closing twice is harmless.
        """
        if self._counts:
            if self._lifeline:
                self._lifeline.close()
            self._counts[self.index][_HAS_CLOSED] = 1
            self.pool.close()
            self._boards, self._counts, self._halves = [], [], []
            self._results = (_NOTHING, _NOTHING)

    def _wait_for(
        self, index: int, meeting: int, deadline: Deadline, epoch: Epoch, during: object, *, is_patient: bool
    ) -> None:
        count = self._counts[index]
        is_patient = is_patient or (self._is_crowded and is_in_background())
        for _ in range(0 if is_patient else self._spins):
            if count[_COUNT] >= meeting:
                return
        began = time.perf_counter()
        for _ in range(0 if is_patient else _YIELDS):
            os.sched_yield()
            if count[_COUNT] >= meeting:
                break
        else:
            self._nap_until(index, meeting, deadline, epoch, during)
        self.waited_s[self.ranks[index]] += time.perf_counter() - began

    def _nap_until(self, index: int, meeting: int, deadline: Deadline, epoch: Epoch, during: object) -> None:
        count, rank, nap_s = self._counts[index], self.ranks[index], _FIRST_NAP_S
        own = self._counts[self.index]
        own[_IS_NAPPING] = 1
        try:
            while (come := count[_COUNT]) < meeting:
                epoch.begin_wait(Wait(self._late(meeting), during))
                epoch.check()
                if (count[_HAS_CLOSED] or rank in epoch.left) and count[_COUNT] < meeting:
                    raise PeerLost(f"rank {rank} left the group before {during}", peer=rank)
                if deadline.has_passed:
                    raise self._overdue(meeting, deadline, during)
                futex.sleep_while(self._addresses[index], come, nap_s)
                nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        finally:
            own[_IS_NAPPING] = 0
        epoch.end_wait()

    def _late(self, meeting: int) -> tuple[int, ...]:
        return tuple(rank for rank, count in zip(self.ranks, self._counts, strict=True) if count[_COUNT] < meeting)

    def _overdue(self, meeting: int, deadline: Deadline, during: object) -> DeadlineExceeded:
        late = self._late(meeting)
        names = " and ".join(f"rank {rank}" for rank in late)
        return DeadlineExceeded(f"{names} did not come to {during} within {deadline.seconds:g} s", peer=late[0])


def _halves(memory: mmap.mmap, start: int) -> tuple[Bytes, Bytes]:
    whole = np.frombuffer(memory, np.uint8, 2 * HALF_BYTES, start)
    return whole[:HALF_BYTES], whole[HALF_BYTES:]
