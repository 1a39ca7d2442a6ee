"""What happens at the edges of a group's life: interrupts, forks, half-made groups, subgroups that end early."""

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from group_counters import Counters

from phalanx.errors import ConfigError, LinkClosed, PeerLost, PhalanxError
from phalanx.group import assemble
from phalanx.group.context import GroupContext
from phalanx.group.group import make_group
from phalanx.testing import World
from phalanx.transport import Deadline, Epoch
from usage import Usage

F32 = np.float32

each_world = pytest.mark.parametrize("over", ["memory", "tcp", "arena"])


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


class HeldBack:
    """A link that takes nothing for the first seconds, longer than ranks wait before they compare what they are in."""

    def __init__(self, link):
        self._link = link
        self._until = None

    def __getattr__(self, name):
        return getattr(self._link, name)

    def send_nowait(self, data):
        now = time.monotonic()
        self._until = self._until or now + 2.0
        return self._link.send_nowait(data) if now > self._until else 0


@pytest.mark.slow
def test_a_slow_link_is_no_disagreement_between_the_halves_of_an_unequal_gather():
    def wrap(rank, link):
        return HeldBack(link) if (rank, link.peer) == (2, 0) else link

    def on_rank(group):
        return [part.tolist() for part in group.all_gather_unequal(np.arange(group.rank, dtype=F32))]

    assert World(3, wrap=wrap).run(on_rank) == [[[], [0], [0, 1]]] * 3


@each_world
def test_an_interrupted_call_ends_the_group_instead_of_mixing_calls_up(over, monkeypatch):
    peer_is_in_the_call = threading.Event()

    def interrupted(team, call, *arguments):
        if team.rank == 0:
            assert peer_is_in_the_call.wait(30)
            raise KeyboardInterrupt
        peer_is_in_the_call.set()
        return all_reduce(team, call, *arguments)

    def on_rank(group):
        errors = []
        for _ in range(2):
            try:
                group.all_reduce(np.ones(4, F32))
            except (KeyboardInterrupt, PhalanxError) as error:
                errors.append(type(error).__name__)
        return errors

    team_class = type(World(1).run(lambda group: group._team)[0])
    all_reduce = team_class.all_reduce
    monkeypatch.setattr(team_class, "all_reduce", interrupted)

    assert World(2, over).run(on_rank) == [["KeyboardInterrupt", "PeerLost"], ["PeerLost", "PeerLost"]]


@each_world
def test_equal_counts_in_other_shapes_are_a_disagreement_where_rows_are_cut(over):
    def on_rank(group):
        group.reduce_scatter(np.ones((3, 4) if group.rank == 0 else (12,), F32))

    outcomes = World(2, over).start(on_rank).outcomes()

    assert [outcome.kind for outcome in outcomes] == ["CollectiveMismatch"] * 2


@each_world
def test_a_closed_subgroup_is_named_to_those_who_wait_in_it(over):
    seen = threading.Event()

    def on_rank(group):
        team = group.subgroup([0, 1])
        if group.rank == 0:
            team.close()
            seen.wait(20)  # the group itself stays
            return None
        with pytest.raises(PeerLost) as caught:
            team.barrier(timeout_s=5)
        seen.set()
        return caught.value.peer

    assert World(2, over).run(on_rank) == [None, 0]


@each_world
def test_a_group_that_closes_closes_its_subgroups(over):
    def on_rank(group):
        team = group.subgroup([0, 1])
        team.barrier()
        group.close()
        with pytest.raises(LinkClosed):
            team.barrier()

    World(2, over).run(on_rank)


def test_worlds_with_subgroups_that_nobody_closed_leave_no_descriptors_behind():
    def on_rank(group):
        group.subgroup([0, 1]).all_reduce(group.allocate(10))

    World(2, "arena").run(on_rank)
    before = Usage()
    for _ in range(5):
        World(2, "arena").run(on_rank)

    before.wait_until_back()


def test_many_sizes_do_not_use_up_the_descriptors():
    def on_rank(group):
        before = open_descriptors()
        for size in range(1, 4000, 7):
            group.allocate(size, "u8")
        return open_descriptors() - before

    assert World(2, "arena", processes=True).run(on_rank)[0] < 60


def test_shared_memory_that_cannot_be_had_is_refused_on_every_rank_and_the_group_goes_on():
    def on_rank(group):
        with pytest.raises(ConfigError, match="shared memory"):
            group.allocate(1 << 62, "u8", shared=True)
        return group.all_reduce(np.ones(1)).tolist()

    assert World(3, "arena").run(on_rank) == [[3.0]] * 3


@each_world
def test_leaving_by_sys_exit_is_leaving(over):
    def on_rank(group):
        group.barrier()
        if group.rank == 0:
            sys.exit(0)
        with pytest.raises(PeerLost, match="left"):
            group.barrier()

    outcomes = World(2, over).start(on_rank).outcomes()

    assert [outcome.kind for outcome in outcomes] == ["SystemExit", ""]


def test_a_forked_child_cannot_close_its_parents_group():
    def on_rank(group):
        if (child := os.fork()) == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        return group.all_reduce(np.ones(1)).tolist()

    assert World(2, "tcp", processes=True).run(on_rank) == [[2.0]] * 2


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e7, float("nan")])
def test_a_wait_without_an_end_is_refused(timeout_s):
    def on_rank(group):
        with pytest.raises(ConfigError, match="every wait ends"):
            group.barrier(timeout_s=timeout_s)

    World(1).run(on_rank)


def test_while_a_group_forms_the_coordinators_word_is_preferred_to_what_a_link_shows():
    epoch = Epoch(1)

    class Connector:
        def accept(self, *_):
            raise PeerLost("rank 1 closed its connection", peer=1)  # since it heard before us that rank 2 is dead

    class Registry:
        def report(self, *_):
            epoch.revoke(PeerLost("rank 2 went away", peer=2))

    with closing(epoch), pytest.raises(PeerLost, match="rank 2 went away"):
        make_group(
            GroupContext(Connector(), epoch, Registry(), ["a"] * 3), [0, 1, 2], 0, bytes(16), Deadline.after(9), 9.0
        )


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_while_the_group_forms_is_named(victim, monkeypatch):
    describe, parent = assemble._describe, os.getpid()

    def die_or_go_on(seat):
        if os.getpid() != parent and ranks.values[victim] == os.getpid():
            os.kill(os.getpid(), signal.SIGKILL)
        return describe(seat)

    def join(world, rank, *arguments):
        ranks.values[rank] = os.getpid()
        return joined(world, rank, *arguments)

    ranks, joined = Counters(4), World.join
    monkeypatch.setattr(assemble, "_describe", die_or_go_on)
    monkeypatch.setattr(World, "join", join)

    outcomes = World(4, "arena", processes=True).start(lambda group: group.barrier()).outcomes()

    assert [(outcome.kind, outcome.peer) for outcome in outcomes] == [("PeerLost", victim)] * 3


@pytest.mark.slow
def test_a_wait_in_one_thread_does_not_hide_what_another_waits_for():
    asleep = threading.Event()  # never set

    def on_rank(group):
        if group.rank == 0:
            asleep.wait(2.0)  # it holds everybody up
        elif group.rank == 3:
            asleep.wait(0.2)
            group.send(np.zeros(1), 1)
            group.send(np.zeros(1), 2)
        else:
            group.recv_nowait(np.zeros(1), 3)  # done while this rank waits for the broadcast
        group.broadcast(np.zeros(8, F32), 0, timeout_s=0.5 if group.rank == 3 else 20)

    outcomes = World(4, "tcp").start(on_rank).outcomes()

    assert {(outcome.kind, outcome.peer) for outcome in outcomes} == {("DeadlineExceeded", 0)}
