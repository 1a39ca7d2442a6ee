import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest
from forked import Forked

from phalanx.errors import DeadlineExceeded, PeerLost
from phalanx.testing import ManualClock
from phalanx.transport import HALF_BYTES, Arena, ArenaSegments, Deadline, Epoch, Location, Post, Wait, can_share_memory

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="this system has no anonymous files to share")

RANKS = (3, 5, 8)  # ranks of the group that happen to share a host


def map_arena(segments, index, ranks=RANKS):
    return Arena(
        segments[index], index, ranks, [segment.board.place for segment in segments], segments[0].results.place
    )


def make_arenas(stack, ranks=RANKS):
    segments = [ArenaSegments.create() for _ in ranks]
    return [stack.enter_context(closing(map_arena(segments, index, ranks))) for index in range(len(ranks))]


@pytest.fixture
def arenas():
    with ExitStack() as stack:
        yield make_arenas(stack)


@pytest.fixture
def epoch():
    with closing(Epoch(1)) as made:
        yield made


def on_all(arenas, function):
    """What ``function(arena, epoch)`` returns on every rank, each a thread."""

    def work(arena):
        with closing(Epoch(1)) as epoch:
            return function(arena, epoch)

    with ThreadPoolExecutor(len(arenas)) as pool:
        return list(pool.map(work, arenas))


def soon():
    return Deadline.after(10)


def words(number):
    return struct.pack("<QQ", number, 0)


def exchange_many(arena, epoch):
    """Meet many times: what all ranks posted and wrote is there after each meeting."""
    for number in range(100):
        half = arena.next_half()
        arena.staging(arena.index, half)[0] = number
        arena.post(words(number + arena.index), Location(1, 2, number))
        arena.wait(soon(), epoch, "a test")

        assert [Post.unpack(posted) for posted in arena.posts()] == [
            Post(words(number + index), Location(1, 2, number), None) for index in range(3)
        ]
        assert [int(arena.staging(index, half)[0]) for index in range(3)] == [number] * 3


def fold_parts(arena, epoch):
    """A small all-reduce: everybody writes its own part of the results, and reads all of them."""
    half = arena.next_half()
    arena.staging(arena.index, half)[:3] = arena.ranks[arena.index]
    arena.meet(soon(), epoch, "the contributions")
    arena.result(half)[arena.index] = sum(int(arena.staging(index, half)[arena.index]) for index in range(3))
    arena.meet(soon(), epoch, "the results")

    assert arena.result(half)[:3].tolist() == [sum(RANKS)] * 3


@pytest.mark.parametrize("work", [exchange_many, fold_parts])
def test_threads_see_what_was_written_before_they_met(arenas, work):
    on_all(arenas, work)


@pytest.mark.parametrize("work", [exchange_many, fold_parts])
def test_processes_see_what_was_written_before_they_met(work):
    segments = [ArenaSegments.create() for _ in RANKS]

    def live(index):
        with closing(Epoch(1)) as epoch:
            work(map_arena(segments, index), epoch)

    children = [Forked(lambda index=index: live(index)) for index in range(len(RANKS))]
    for child in children:
        child.join()
    for segment in segments:
        segment.release()


def test_a_post_carries_where_input_and_output_lie(arenas):
    sources = [Location(9, 8, 7), None, Location(0, 0, 0)]
    targets = [(6, 5), None, (0, 0)]

    def post(arena, epoch):
        arena.post(words(1), sources[arena.index], targets[arena.index])
        arena.wait(soon(), epoch, "a test")
        return [Post.unpack(posted) for posted in arena.posts()]

    for posts in on_all(arenas, post):
        assert posts == [Post(words(1), *where) for where in zip(sources, targets, strict=True)]


def test_a_fast_rank_does_not_disturb_what_a_slow_one_still_reads(arenas):
    fast, *slow = arenas
    for arena in arenas:
        arena.post(words(1))

    fast.post(words(2))

    for arena in slow:
        assert [Post.unpack(posted).words for posted in arena.posts()] == [words(1)] * 3


def test_only_its_owner_can_write_a_board(arenas):
    mine, other = arenas[1].staging(1, 0), arenas[1].staging(0, 0)

    assert len(mine) == len(other) == HALF_BYTES
    assert mine.flags.writeable
    assert not other.flags.writeable


def test_a_deadline_names_the_ranks_that_are_late(arenas, epoch):
    clock = ManualClock()
    deadline = Deadline.after(2, clock)
    clock.advance(3)
    arenas[1].arrive()

    with pytest.raises(DeadlineExceeded, match="rank 3 and rank 8 did not come to the barrier within 2 s") as caught:
        arenas[1].wait(deadline, epoch, "the barrier")

    assert caught.value.peer == 3
    assert epoch.waiting.wait == Wait((3, 8), "the barrier")


def test_who_came_to_an_earlier_meeting_only_is_late(arenas, epoch):
    for arena in arenas:
        arena.arrive()
    arenas[0].arrive()
    arenas[1].arrive()

    with pytest.raises(DeadlineExceeded, match=r"^rank 8 did not come") as caught:
        arenas[0].wait(Deadline.after(0.01), epoch, "the barrier")

    assert caught.value.peer == 8


def test_a_revoked_epoch_ends_the_wait_with_its_reason(arenas, epoch):
    revoking = threading.Thread(target=epoch.revoke, args=(PeerLost("rank 5 went away", peer=5),))
    arenas[0].arrive()

    revoking.start()
    with pytest.raises(PeerLost, match="rank 5 went away") as caught:
        arenas[0].wait(soon(), epoch, "the barrier")
    revoking.join()

    assert caught.value.peer == 5


def test_a_rank_that_left_before_the_meeting_is_named(arenas, epoch):
    epoch.leave(8)
    arenas[0].arrive()
    arenas[1].arrive()

    with pytest.raises(PeerLost, match="rank 8 left the group before the barrier") as caught:
        arenas[0].wait(soon(), epoch, "the barrier")

    assert caught.value.peer == 8


def test_a_rank_that_left_after_the_meeting_is_not_missed(arenas, epoch):
    for arena in arenas:
        arena.arrive()

    epoch.leave(8)

    arenas[0].wait(soon(), epoch, "the barrier")


def test_who_kept_others_waiting_is_on_record(arenas, epoch):
    def come_late():
        while epoch.waiting is None:
            os.sched_yield()
        arenas[2].arrive()

    late = threading.Thread(target=come_late)
    arenas[0].arrive()
    arenas[1].arrive()

    late.start()
    arenas[0].wait(soon(), epoch, "a test")
    late.join()

    assert arenas[0].waited_s[8] > 0
    assert arenas[0].waited_s[3] == arenas[0].waited_s[5] == 0
    assert epoch.waiting is None


def test_what_a_rank_of_an_old_epoch_writes_late_is_seen_by_nobody_in_the_new_one(arenas):
    with ExitStack() as stack:
        new = make_arenas(stack)

        for old in arenas:
            for half in (0, 1):
                old.result(half)[:] = 7
                old.staging(old.index, half)[:] = 7
            old.post(words(7))

        for arena in new:
            assert not any(arena.result(half).any() for half in (0, 1))
            assert not any(arena.staging(index, half).any() for index in range(3) for half in (0, 1))
            assert arena._late(1) == RANKS


def test_memory_out_of_reach_is_an_os_error_that_lets_links_serve_instead():
    segments = [ArenaSegments.create(), ArenaSegments.create()]
    segments[1].release()

    with pytest.raises(OSError, match="No such file"):
        map_arena(segments, 0, (0, 1))
    segments[0].release()


def test_arrays_outlive_their_arena():
    segments = [ArenaSegments.create()]
    arena = map_arena(segments, 0, (0,))
    array = arena.pool.allocate(100)
    descriptor = arena.pool.locate(array).descriptor

    segments[0].release()
    arena.close()
    array[:] = 1

    np.testing.assert_array_equal(array, np.ones(100))
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")  # noqa: PTH110
