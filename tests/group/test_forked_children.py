"""A rank with forked children, such as the workers of a data loader, is missed at once when it dies."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
from group_counters import Counters

from phalanx.testing import World

SIZE, VICTIM = 3, 1


@pytest.mark.parametrize("over", ["tcp", "arena"])
def test_a_killed_rank_is_named_at_once_though_its_children_live(over):
    """If only its silence told that it died, it would be named for doing nothing, by another error and much later."""
    loaders, (noticed, note) = Counters(2), os.pipe()

    def load(number):
        loaders.values[number] = os.getpid()
        signal.pause()

    def on_rank(group):
        array = np.ones(1000, np.float32)
        group.all_reduce(array)
        if group.rank == VICTIM:
            for number in range(2):
                multiprocessing.get_context("fork").Process(target=load, args=(number,)).start()
        while True:
            try:
                group.all_reduce(array)
            except BaseException:
                os.write(note, b"!")
                raise

    running = World(SIZE, over, processes=True).start(on_rank)
    loaders.wait_until_all_reach(1)
    running.kill(VICTIM)
    for _ in range(SIZE - 1):
        os.read(noticed, 1)
    for pid in loaders.values:
        os.kill(pid, signal.SIGKILL)  # alive until now; they hold the pipe on which this test hears of the rank's end
    outcomes = running.outcomes()
    os.close(noticed)
    os.close(note)

    assert [each.rank for each in outcomes] == [0, 2]
    assert {(each.kind, each.peer) for each in outcomes} == {("PeerLost", VICTIM)}
