import mmap
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked import Forked

from phalanx.errors import ConfigError
from phalanx.transport import can_share_memory, host_identity
from phalanx.transport.segment import PAGE_BYTES, Segment, map_segment

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="this system has no anonymous files to share")


@pytest.fixture
def segment():
    with ExitStack() as opened:
        made = Segment.create(1000)
        opened.callback(made.release)
        yield made


def test_a_segment_is_fresh_zeroed_and_whole_pages(segment):
    assert len(segment.memory) == PAGE_BYTES
    assert not any(segment.memory[:])


def test_a_segment_of_nothing_is_one_page():
    segment = Segment.create(0)

    segment.release()

    assert len(segment.memory) == PAGE_BYTES


def test_a_segment_has_no_name_in_any_folder(segment):
    name = Path(f"/proc/self/fd/{segment.place.descriptor}").readlink()

    assert str(name) == "/memfd:phalanx (deleted)"
    assert not [each for each in os.listdir("/dev/shm") if "phalanx" in each]  # noqa: PTH208, S108


@pytest.mark.parametrize("size", [0, PAGE_BYTES - 1, 2 * PAGE_BYTES])
def test_nobody_can_change_the_size_of_a_segment(segment, size):
    with pytest.raises(PermissionError):
        os.ftruncate(segment.place.descriptor, size)


def test_a_peer_reads_what_the_owner_wrote(segment):
    segment.memory[:5] = b"hello"

    def peer():
        assert map_segment(segment.place, writable=False)[:5] == b"hello"

    Forked(peer).join()


def test_the_owner_reads_what_a_peer_wrote(segment):
    def peer():
        map_segment(segment.place, writable=True)[:5] = b"hello"

    Forked(peer).join()

    assert segment.memory[:5] == b"hello"


def test_a_peer_that_may_only_read_cannot_write(segment):
    memory = map_segment(segment.place, writable=False)
    array = np.frombuffer(memory, np.uint8)

    with pytest.raises(TypeError, match="readonly"):
        memory[:5] = b"hello"
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_another_file_at_the_same_descriptor_is_refused(segment):
    elsewhere = replace(segment.place, inode=segment.place.inode + 1)

    with pytest.raises(FileNotFoundError, match="has another file"):
        map_segment(elsewhere, writable=False)


def test_memory_of_a_process_that_is_gone_is_out_of_reach(segment):
    child = Forked(lambda: None)
    child.join()

    with pytest.raises(OSError, match="No such file"):
        map_segment(replace(segment.place, pid=child.pid), writable=False)


def test_what_was_mapped_outlives_its_name():
    segment = Segment.create(10)
    segment.memory[:2] = b"ok"
    mapped = map_segment(segment.place, writable=False)

    segment.release()

    assert isinstance(mapped, mmap.mmap)
    assert mapped[:2] == b"ok"


def test_more_memory_than_there_can_be_is_refused_and_nothing_stays_open():
    before = os.listdir("/proc/self/fd")  # noqa: PTH208

    with pytest.raises(ConfigError, match="ask for less"):
        Segment.create(2**62)

    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_processes_of_one_host_have_the_same_identity():
    here = host_identity()

    def peer():
        assert host_identity() == here

    Forked(peer).join()


def test_hosts_that_cannot_share_memory_are_all_different(monkeypatch):
    monkeypatch.setattr("phalanx.transport.segment.can_share_memory", lambda: False)

    assert host_identity() != host_identity()
