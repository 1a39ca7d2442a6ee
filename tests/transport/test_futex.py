"""Who sleeps on a word is woken, in another process too, and never sleeps longer than asked."""

import mmap
import os
import time

import numpy as np
import pytest

from phalanx.transport import futex

LONG_S = 30.0


@pytest.fixture
def shared():
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint32)


def test_a_word_that_has_changed_is_not_slept_on(shared):
    shared[0] = 2
    began = time.monotonic()

    futex.sleep_while(shared.ctypes.data, 1, LONG_S)

    assert time.monotonic() - began < LONG_S


def test_a_sleep_ends_with_its_time(shared):
    began = time.monotonic()

    futex.sleep_while(shared.ctypes.data, 0, 0.05)

    assert time.monotonic() - began >= 0.04


@pytest.mark.skipif(not futex.IS_THERE, reason="this system has no futex")
def test_another_process_is_woken(shared):
    child = os.fork()
    if child == 0:
        shared[1] = 1
        began = time.monotonic()
        while shared[0] == 0 and time.monotonic() - began < LONG_S:
            futex.sleep_while(shared.ctypes.data, 0, LONG_S)
        os._exit(0 if shared[0] == 1 and time.monotonic() - began < LONG_S else 1)
    while shared[1] == 0:
        os.sched_yield()

    shared[0] = 1
    futex.wake(shared.ctypes.data)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
