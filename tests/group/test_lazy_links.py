"""Links are made when they are first needed, and not all at once."""

import os
import signal
import threading

import numpy as np
import pytest

from phalanx.errors import DeadlineExceeded, PeerLost
from phalanx.testing import World


def made(group):
    """Which ranks this rank has links to: for collectives, for sending, for receiving."""
    team = group._team
    collective = {peer for peer, link in team.links.links.items() if link.is_made}
    outbound, inbound = (
        {peer for peer, runner in runners.items() if runner.links[peer].is_made}
        for runners in (team._outbound, team._inbound)
    )
    return [sorted(collective), sorted(outbound), sorted(inbound)]


def test_ranks_that_share_memory_have_no_links_until_one_sends_to_another():
    def on_rank(group):
        group.all_reduce(np.ones(100_000, np.float32))
        group.subgroup([0, 1, 2, 3]).barrier()
        before = made(group)
        if group.rank == 1:
            group.send(np.arange(3.0), 3)
        if group.rank == 3:
            assert group.recv(np.empty(3), 1).tolist() == [0, 1, 2]
        return [before, made(group)]

    none = [[], [], []]

    assert World(4, "arena").run(on_rank) == [
        [none, none],
        [none, [[], [3], []]],
        [none, none],
        [none, [[], [], [1]]],
    ]


def test_ranks_that_form_a_group_make_few_links_and_those_of_a_call_when_it_is_made():
    def on_rank(group):
        before = made(group)[0]
        group.all_to_all(np.zeros(8))
        return [before, made(group)[0]]

    outcomes = World(4, "tcp").run(on_rank)

    assert [before for before, _ in outcomes] == [[1, 2], [0, 3], [0, 3], [1, 2]]
    assert [after for _, after in outcomes] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_a_send_need_not_wait_until_its_peer_receives(over):
    def on_rank(group):
        peer = 1 - group.rank
        group.send(np.array([group.rank]), peer)
        group.barrier()
        return int(group.recv(np.empty(1, np.int64), peer)[0])

    assert World(2, over).run(on_rank) == [1, 0]


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_a_collective_that_waits_for_its_links_does_not_hold_up_a_send(over):
    def on_rank(group):
        if group.rank == 0:
            gathering = group.all_to_all_nowait(np.zeros(2))  # rank 1 comes to it when it has received
            group.send(np.ones(1), 1)
            gathering.wait()
        else:
            group.recv(np.zeros(1), 0)
            group.all_to_all(np.zeros(2))

    World(2, over).run(on_rank)


@pytest.mark.parametrize("over", ["tcp", "arena"])
@pytest.mark.parametrize("how", ["send", "recv", "all_to_all"])
def test_a_rank_that_died_before_the_link_was_made_is_named(over, how):
    def on_rank(group):
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "all_to_all":
            group.all_to_all(np.zeros(3))
        getattr(group, how)(np.zeros(1 << 20), 2)
        group.barrier()

    outcomes = World(3, over, processes=True).start(on_rank).outcomes()

    assert [(type(outcome.error), outcome.peer) for outcome in outcomes] == [(PeerLost, 2)] * 2


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_a_peer_that_never_sends_is_named_at_the_deadline(over):
    is_over = threading.Event()

    def on_rank(group):
        if group.rank == 1:
            is_over.wait(20)
            return
        try:
            with pytest.raises(DeadlineExceeded, match="rank 1") as caught:
                group.recv(np.zeros(1), 1, timeout_s=0.1)
            assert caught.value.peer == 1
        finally:
            is_over.set()

    World(2, over).start(on_rank).outcomes()[0].unwrap()
