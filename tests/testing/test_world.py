import os
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from phalanx.errors import ConfigError, PeerLost
from phalanx.testing import FaultyLink, World
from phalanx.transport import Deadline

WORLDS = [("memory", False), ("tcp", False), ("arena", False), ("tcp", True), ("arena", True)]
PROCESSES = ["tcp", "arena"]


def add_up(group):
    array = np.full(5, group.rank + 1.0)
    group.all_reduce(array)
    return {"rank": group.rank, "sum": array}


@contextmanager
def signal_pipe():
    """A way for a rank in another process to say that it has come so far."""
    read_end, write_end = os.pipe()
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)
        os.close(write_end)


def wait_until(is_true):
    deadline = Deadline.after(10)
    while not is_true():
        assert not deadline.has_passed, "it never happened"
        os.sched_yield()


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("over", "processes"), WORLDS)
@pytest.mark.parametrize("size", [1, 3])
def test_results_come_back_by_rank(size, over, processes):
    results = World(size, over, processes=processes).run(add_up)

    assert [result["rank"] for result in results] == list(range(size))
    for result in results:
        np.testing.assert_array_equal(result["sum"], np.full(5, size * (size + 1) / 2))


@pytest.mark.parametrize("processes", [False, True])
def test_hosts_can_be_simulated(processes):
    world = World(4, "arena", processes=processes, hosts=["a", "a", "b", "b"])

    assert [list(map(list, hosts)) for hosts in world.run(lambda group: group.hosts)] == [[[0, 1], [2, 3]]] * 4


@pytest.mark.parametrize(("over", "processes"), WORLDS)
def test_the_first_error_is_raised_with_its_rank_and_traceback(over, processes):
    def fail_on_one(group):
        if group.rank == 1:
            raise KeyError("no such lane")
        group.barrier()

    with pytest.raises(RuntimeError, match="KeyError: 'no such lane'") as caught:
        World(3, over, processes=processes).run(fail_on_one)

    note = "".join(caught.value.__notes__)
    assert note.startswith("on rank 1:")
    assert "in fail_on_one" in note


@pytest.mark.parametrize(("over", "processes"), WORLDS)
def test_the_others_learn_who_failed(over, processes):
    def fail_on_one(group):
        if group.rank == 1:
            raise KeyError("no such lane")
        group.barrier()

    outcomes = World(3, over, processes=processes).start(fail_on_one).outcomes()

    assert [outcome.kind for outcome in outcomes] == ["PeerLost", "KeyError", "PeerLost"]
    assert [outcome.peer for outcome in outcomes] == [1, None, 1]


@pytest.mark.parametrize("over", PROCESSES)
def test_a_killed_rank_has_no_outcome_and_the_others_name_it(over):
    with signal_pipe() as (read_end, write_end):

        def wait_for_ever(group):
            group.barrier()
            if group.rank == 1:
                os.write(write_end, b"!")
                threading.Event().wait()
            group.barrier()

        run = World(3, over, processes=True).start(wait_for_ever)
        os.read(read_end, 1)
        run.kill(1)
        outcomes = run.outcomes()

    assert [(outcome.rank, outcome.kind, outcome.peer) for outcome in outcomes] == [
        (0, "PeerLost", 1),
        (2, "PeerLost", 1),
    ]


@pytest.mark.parametrize("over", PROCESSES)
def test_a_rank_can_be_stopped_and_resumed(over):
    with signal_pipe() as (has_come, come), signal_pipe() as (may_go, go):

        def work(group):
            group.barrier()
            if group.rank == 1:
                os.write(come, b"!")
                os.read(may_go, 1)
            return add_up(group)["sum"][0]

        run = World(3, over, processes=True).start(work)
        os.read(has_come, 1)
        run.stop(1)
        wait_until(lambda: is_stopped(run._children[1].pid))
        os.write(go, b"!")
        run.resume(1)

        assert run.results() == [6.0, 6.0, 6.0]


def test_a_rank_that_is_stopped_is_named_at_the_deadline():
    with signal_pipe() as (read_end, write_end):

        def work(group):
            group.barrier()
            if group.rank == 1:
                os.write(write_end, b"!")
                threading.Event().wait()
            group.barrier(timeout_s=0.2)

        run = World(3, "arena", processes=True).start(work)
        os.read(read_end, 1)
        run.stop(1)
        outcomes = [run._children[rank].outcome() for rank in (0, 2)]
        run.kill(1)
        run._children[1].outcome()
        run._coordinator.close()

    assert [(outcome.kind, outcome.peer) for outcome in outcomes] == [("DeadlineExceeded", 1)] * 2


def test_links_are_wrapped_by_the_rank_that_uses_them():
    wrapped = []

    def wrap(rank, link):
        wrapped.append((rank, link.peer))
        return FaultyLink(link)

    World(3, wrap=wrap).run(add_up)

    assert set(wrapped) == {(rank, peer) for rank in range(3) for peer in range(3) if rank != peer}


def test_a_phalanx_error_comes_back_as_what_it_was():
    def fail(group):
        raise PeerLost("gone for good", peer=0)

    with pytest.raises(PeerLost, match="gone for good") as caught:
        World(2, "tcp", processes=True).run(fail)

    assert caught.value.peer == 0


@pytest.mark.parametrize("act", ["kill", "stop", "resume"])
def test_a_thread_cannot_be_killed_or_stopped(act):
    run = World(1).start(lambda group: group.rank)

    with pytest.raises(ConfigError, match=r"rank 0 is a thread .* processes=True"):
        getattr(run, act)(0)
    assert run.results() == [0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"over": "carrier pigeon"}, "memory, tcp or arena"),
        ({"over": "memory", "processes": True}, "use tcp or arena"),
        ({"over": "tcp", "wrap": lambda _, link: link}, "can be wrapped"),
    ],
)
def test_a_world_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        World(2, **arguments)
