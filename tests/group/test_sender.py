"""Where ranks have two CPUs each, a second thread sends: results and errors are the same, and nothing is left over."""

import threading

import numpy as np
import pytest
from group_lanes import blocks_of

from phalanx.collectives.sender import Sender
from phalanx.errors import DeadlineExceeded, PeerLost
from phalanx.testing import World
from usage import Usage

LENGTH = 1 << 19  # 2 MiB


@pytest.fixture(autouse=True)
def two_cpus_each(monkeypatch):
    monkeypatch.setattr("phalanx.group.assemble.usable_cpus", lambda: 64)


@pytest.fixture
def senders(monkeypatch):
    """Counts the senders that were made."""
    made = []
    monkeypatch.setattr("phalanx.collectives.run.Sender", lambda epoch: made.append(Sender(epoch)) or made[-1])
    return made


def test_results_are_those_of_one_thread(senders):
    values = np.random.default_rng(1).standard_normal((3, LENGTH)).astype(np.float32)

    def work(group):
        small = group.all_reduce(values[group.rank, :100].copy())
        large = group.all_reduce(values[group.rank].copy())
        rows, out = values[group.rank].reshape(1, -1).copy(), np.empty(LENGTH, np.float32)
        group.fold_lanes(rows, out, lanes=3, blocks=blocks_of(LENGTH, 5000))
        whole = group.all_gather(values[group.rank])
        return small.tobytes(), large.tobytes(), out.tobytes(), whole.tobytes()

    results = World(3, "tcp").run(work)

    total = values[0] + values[1] + values[2]
    expected = (total[:100].tobytes(), total.tobytes(), total.tobytes(), values.tobytes())
    assert results == [expected] * 3
    assert len(senders) == 3


@pytest.mark.slow
def test_threads_and_descriptors_are_gone_with_the_group(senders):
    def work(group):
        group.all_reduce(np.ones(LENGTH, np.float32))

    World(2, "tcp").run(work)
    before = Usage()

    World(2, "tcp").run(work)

    before.wait_until_back()
    assert len(senders) == 4


def test_a_peer_that_leaves_ends_the_sending_of_the_others(senders):
    left, all_are_done = threading.Event(), threading.Barrier(3)

    def work(group):
        group.all_reduce(np.ones(LENGTH, np.float32))
        all_are_done.wait(30)  # the first rank that is told ends the group, also for one that is still in this call
        if group.rank == 1:
            group.close()
            left.set()
            return None
        left.wait(30)
        with pytest.raises(PeerLost, match="rank 1"):
            group.all_reduce(np.ones(LENGTH, np.float32))
        return "told"

    assert World(3, "tcp").run(work) == ["told", None, "told"]
    assert len(senders) == 3


def test_a_peer_that_does_not_come_is_named_at_the_deadline(senders):
    is_over = threading.Barrier(2)

    def work(group):
        if group.rank == 0:
            with pytest.raises(DeadlineExceeded, match="rank 1"):
                group.all_reduce(np.ones(16 * LENGTH, np.float32), timeout_s=0.3)
        is_over.wait(30)

    World(2, "memory").run(work)
    assert senders
