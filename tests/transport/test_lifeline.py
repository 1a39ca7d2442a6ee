import os
import signal
import socket
import threading
from contextlib import closing, contextmanager

import numpy as np
import pytest

from forking import fork, wait
from phalanx.transport.lifeline import LIFELINE_BYTES, Lifeline
from phalanx.transport.segment import Segment

LIMIT_S = 60


def room():
    segment = Segment.create(2 * LIFELINE_BYTES)
    whole = np.frombuffer(segment.memory, np.uint8)
    return segment, whole[:LIFELINE_BYTES], whole[LIFELINE_BYTES : 2 * LIFELINE_BYTES]


@contextmanager
def other_process(own, other, *, says_goodbye):
    """Yield a function that ends another process, which has a lifeline. This process holds the other one's socket."""
    here, there = socket.socketpair()
    with here, there:

        def live():
            lifeline = Lifeline(other, own, lambda: None)
            there.send(b"!")
            there.recv(1)
            if says_goodbye:
                lifeline.close()
            os.kill(os.getpid(), signal.SIGKILL)

        def end():
            here.send(b"!")
            assert wait(pid) == -signal.SIGKILL

        pid = fork(live)
        assert here.recv(1) == b"!"
        yield end


def test_the_death_of_the_other_process_is_noticed():
    segment, own, other = room()
    died = threading.Event()
    with other_process(own, other, says_goodbye=False) as end, closing(Lifeline(own, other, died.set)):
        assert not died.is_set()

        end()

        assert died.wait(LIMIT_S)
    segment.release()


def test_a_process_that_died_before_it_was_watched_is_noticed():
    segment, own, other = room()
    died = threading.Event()
    with other_process(own, other, says_goodbye=False) as end:
        end()

        with closing(Lifeline(own, other, died.set)):
            assert died.wait(LIMIT_S)
    segment.release()


def test_a_process_that_closes_its_lifeline_and_ends_is_not_called_dead():
    segment, own, other = room()
    calls = []
    with (
        other_process(own, other, says_goodbye=True) as end,
        closing(Lifeline(own, other, lambda: calls.append(1))),
    ):
        end()

        assert not other[:4].any()
    assert calls == []
    segment.release()


@pytest.mark.parametrize("times", [1, 2])
def test_closing_ends_the_thread_and_clears_the_word(times):
    segment, own, other = room()
    before = threading.active_count()
    lifeline = Lifeline(own, other, lambda: None)

    for _ in range(times):
        lifeline.close()

    assert threading.active_count() == before
    assert not own[:4].any()
    segment.release()
