import os
import weakref
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from phalanx.errors import PeerLost
from phalanx.transport import Location, SegmentPool


@pytest.fixture
def pool():
    with closing(SegmentPool([0], [os.getpid()])) as made:
        yield made


@pytest.fixture
def peer():
    with closing(SegmentPool([0], [os.getpid()])) as made:
        yield made


def test_memory_has_the_size_asked_for_and_is_zeroed(pool):
    array = pool.allocate(1001)

    assert array.shape == (1001,)
    assert not array.any()


def maps():
    """The anonymous files that are mapped here, by inode."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.split()[4]) for line in lines if "memfd:phalanx" in line]


def test_memory_is_closed_and_unmapped_when_its_last_array_is_gone(pool, peer):
    array = pool.allocate(1000)
    location = pool.locate(array)
    peer.read(0, location, 0, 10)
    assert maps().count(location.inode) == 2

    del array

    assert maps().count(location.inode) == 1  # the peer's
    with pytest.raises(OSError):  # noqa: PT011 - whichever
        os.fstat(location.descriptor)
    other = pool.allocate(1000)
    peer.read(0, pool.locate(other), 0, 10)
    assert maps().count(location.inode) == 0
    assert maps().count(pool.locate(other).inode) == 2


def test_a_pool_that_is_dropped_leaves_nothing_behind():
    before = maps(), os.listdir("/proc/self/fd")  # noqa: PTH208
    pool = SegmentPool([0], [os.getpid()])
    own, (shared, segment) = pool.allocate(1000), pool.create_shared(1000)
    pool.read(0, pool.locate(own), 0, 10)
    segment.release()
    gone = weakref.ref(pool)

    pool.close()
    del pool
    assert gone() is None  # although arrays are left
    del own, shared, segment

    assert (maps(), os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_rank_whose_memory_is_gone_before_it_was_mapped_is_lost(pool, is_shared):
    array = pool.allocate(1000)
    location = pool.locate(array)
    del array  # as when it has ended
    peer = SegmentPool([4, 7], [1, os.getpid()])

    with pytest.raises(PeerLost, match=f"rank 7 .process {os.getpid()}.") as caught:
        peer.map_shared(1, location, 1000) if is_shared else peer.read(1, location, 0, 10)

    assert caught.value.peer == 7


def test_memory_is_kept_while_a_slice_of_it_lives(pool):
    first = pool.allocate(1000)
    piece = first.view(np.float32)[10:20].reshape(2, 5)

    del first
    second = pool.allocate(1000)

    assert pool.locate(second).inode != pool.locate(piece).inode
    assert not np.shares_memory(second, piece)


def test_slices_are_found_with_their_offset(pool):
    arrays = [pool.allocate(1 << 16) for _ in range(5)]

    located = [pool.locate(array[100 * index :]) for index, array in enumerate(arrays)]

    assert [location.offset for location in located] == [0, 100, 200, 300, 400]
    assert len({location.inode for location in located}) == 5


@pytest.mark.parametrize("make_array", [lambda: np.zeros(10), lambda: np.zeros(0), lambda: np.zeros(1 << 22)])
def test_arrays_from_elsewhere_are_not_found(pool, make_array):
    pool.allocate(1000)

    assert pool.locate(make_array()) is None
    assert pool.locate_shared(make_array()) is None


def test_an_empty_shelf_finds_nothing(pool):
    assert pool.locate(np.zeros(3)) is None


def test_own_memory_is_not_shared_and_shared_memory_is_not_own(pool):
    own = pool.allocate(100)
    shared, segment = pool.create_shared(100)
    segment.release()

    assert pool.locate_shared(own) is None
    assert pool.locate(shared) is None


def test_a_peer_reads_what_lies_at_a_location_and_cannot_write_it(pool, peer):
    array = pool.allocate(1000)
    array[300:310] = 7

    seen = peer.read(0, pool.locate(array[200:]), 100, 110)

    assert seen.tolist() == [7] * 10
    assert not seen.flags.writeable


def test_what_is_read_again_is_mapped_once(pool, peer):
    array = pool.allocate(1000)
    location = pool.locate(array)

    first, second = peer.read(0, location, 0, 10), peer.read(0, location, 0, 10)

    assert np.shares_memory(first, second)


def test_a_location_that_holds_something_else_is_refused(pool, peer):
    array = pool.allocate(1000)
    location = pool.locate(array)

    with pytest.raises(PeerLost, match="before its memory was mapped"):
        peer.read(0, Location(location.descriptor, location.inode + 1, 0), 0, 10)


def test_shared_memory_is_written_by_all_and_found_alike(pool, peer):
    created, segment = pool.create_shared(1000)
    mapped = peer.map_shared(0, Location(segment.place.descriptor, segment.place.inode, 0), 1000)
    segment.release()

    mapped[5] = 1
    created[6] = 2

    assert created[5:7].tolist() == mapped[5:7].tolist() == [1, 2]
    assert pool.locate_shared(created[5:]) == peer.locate_shared(mapped[5:]) == (segment.place.inode, 5)


def test_shared_memory_is_forgotten_with_its_last_array(pool):
    created, segment = pool.create_shared(1000)
    segment.release()
    view = created[10:20]
    del created
    assert pool.locate_shared(view) is not None

    del view

    assert pool._shared == {}


def test_arrays_outlive_their_shelf():
    pool = SegmentPool([0], [os.getpid()])
    array = pool.allocate(1000)
    array[:] = 3

    pool.close()
    pool.close()

    assert array.sum() == 3000
