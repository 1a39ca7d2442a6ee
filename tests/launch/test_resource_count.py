"""Counting what a process and its descendants use."""

import mmap
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

from phalanx.launch.resource_count import count_resources, find_descendants


def test_descendants_are_found_at_any_depth_and_others_are_not():
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}

    assert find_descendants(2, parents) == {2, 3, 4}


def test_everything_that_a_process_and_its_child_open_is_counted():
    before = count_resources(os.getpid())

    with ExitStack() as stack:
        is_over = threading.Event()
        thread = threading.Thread(target=is_over.wait, name="waits")
        thread.start()
        stack.callback(thread.join)
        stack.callback(is_over.set)
        for end in socket.socketpair():
            stack.enter_context(end)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        stack.enter_context(child)
        during = count_resources(os.getpid())

    assert during.processes == before.processes + 1
    assert during.threads >= before.threads + 2
    assert during.sockets == before.sockets + 2
    assert during.descriptors >= before.descriptors + 3
    assert count_resources(os.getpid()).processes == before.processes


def test_a_segment_that_is_mapped_twice_counts_once():
    before = count_resources(os.getpid())

    with ExitStack() as stack:
        descriptor = os.memfd_create("phalanx")
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        for _ in range(2):
            stack.enter_context(mmap.mmap(descriptor, mmap.PAGESIZE))
        during = count_resources(os.getpid())

    assert during.segments == before.segments + 1
