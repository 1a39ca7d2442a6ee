"""Real kills, real stops: every survivor learns who it was, and nobody waits for ever."""

import os
import signal
import time

import numpy as np
import pytest
from group_counters import Counters
from group_lanes import blocks_of

from phalanx.errors import PhalanxError
from phalanx.testing import World

MIB = 1 << 20
SIZE = 4

each_world = pytest.mark.parametrize("over", ["tcp", "arena"])


def keep_reducing(counters, length):
    def on_rank(group):
        array = np.ones(length, np.float32)
        while True:
            group.all_reduce(array)
            array.fill(1)
            counters.values[group.rank] += 1

    return on_rank


def kill_one_and_check(over, victim, moment_s, hosts=None):
    counters = Counters(SIZE)
    running = World(SIZE, over, processes=True, hosts=hosts).start(keep_reducing(counters, 64 * MIB // 4))
    counters.wait_until_all_reach(1)
    until = time.monotonic() + moment_s
    while time.monotonic() < until:
        pass

    running.kill(victim)
    killed_at = time.monotonic()
    outcomes = running.outcomes()

    assert [outcome.rank for outcome in outcomes] == [rank for rank in range(SIZE) if rank != victim]
    for outcome in outcomes:
        assert (outcome.kind, outcome.peer) == ("PeerLost", victim), outcome
        assert f"rank {victim}" in outcome.words
        assert outcome.at - killed_at < 1.0


@pytest.mark.serial
@each_world
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_is_named_on_every_survivor_within_a_second(over, victim):
    kill_one_and_check(over, victim, moment_s=0.02)


@pytest.mark.slow
@pytest.mark.serial
@each_world
@pytest.mark.parametrize("attempt", range(20))
def test_a_rank_killed_at_any_moment_is_named(over, attempt):
    kill_one_and_check(over, victim=attempt % SIZE, moment_s=0.2 * attempt / 20)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("victim", range(SIZE))
def test_a_rank_killed_on_one_of_two_hosts_is_named_on_both(victim):
    kill_one_and_check("arena", victim, moment_s=0.03, hosts=["a", "a", "b", "b"])


@pytest.mark.serial
@pytest.mark.parametrize(
    ("over", "hosts"), [("tcp", None), ("arena", None), ("arena", ["a", "a", "b", "b"])], ids=["tcp", "arena", "hosts"]
)
@pytest.mark.parametrize("length", [16, pytest.param(4 * MIB, marks=pytest.mark.slow)])
def test_a_stopped_rank_is_named_at_the_deadline(over, hosts, length):
    counters, timeout_s, victim = Counters(SIZE), 1.0, 2

    def on_rank(group):
        array = np.ones(length, np.float32)
        while True:
            began = time.monotonic()
            try:
                group.all_reduce(array, timeout_s=timeout_s)
            except TimeoutError:
                counters.values[group.rank] = 10**9 + int(1000 * (time.monotonic() - began))
                raise
            array.fill(1)
            counters.values[group.rank] += 1

    running = World(SIZE, over, processes=True, hosts=hosts).start(on_rank)
    counters.wait_until_all_reach(2)
    running.stop(victim)
    deadline = time.monotonic() + 60
    while min(value for rank, value in enumerate(counters.values) if rank != victim) < 10**9:
        assert time.monotonic() < deadline, list(counters.values)
    running.resume(victim)
    outcomes = running.outcomes()

    for outcome in outcomes:
        assert outcome.kind == "DeadlineExceeded", outcome
        if outcome.rank != victim:
            assert outcome.peer == victim, outcome
            waited_s = (counters.values[outcome.rank] - 10**9) / 1000
            assert timeout_s <= waited_s < timeout_s + 20


@each_world
@pytest.mark.parametrize("call", ["scatter_lanes", "broadcast_blocks"])
def test_a_rank_that_dies_before_its_blocks_are_exchanged_is_named(over, call):
    def work(group):
        rows, cuts = group.allocate((1, 9)), {"blocks": blocks_of(9, 3), "owners": [0, 1, 2]}
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if call == "scatter_lanes":
            group.scatter_lanes(rows, rows[0], lanes=3, **cuts)
        else:
            group.broadcast_blocks(rows[0], **cuts)

    outcomes = World(3, over, processes=True).start(work).outcomes()

    assert [(each.rank, each.kind, each.peer) for each in outcomes] == [(0, "PeerLost", 1), (2, "PeerLost", 1)]


@each_world
def test_a_rank_that_raises_is_named_with_its_words(over):
    def on_rank(group):
        group.barrier()
        if group.rank == 1:
            raise ValueError("bad batch 17")
        group.all_reduce(np.ones(1000, np.float32))

    outcomes = World(3, over, processes=True).start(on_rank).outcomes()

    assert outcomes[1].kind == "ValueError"
    for outcome in (outcomes[0], outcomes[2]):
        assert (outcome.kind, outcome.peer) == ("PeerLost", 1)
        assert "bad batch 17" in outcome.words


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_a_rank_that_left_is_named_only_to_those_who_still_need_it(over):
    def on_rank(group):
        group.barrier()
        if group.rank == 1:
            return "left"
        group.barrier()
        return None

    outcomes = World(3, over).start(on_rank).outcomes()

    assert outcomes[1].result == "left"
    for outcome in (outcomes[0], outcomes[2]):
        assert (outcome.kind, outcome.peer) == ("PeerLost", 1), outcome
        assert "left" in outcome.words


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_after_a_failure_every_call_raises_it_again(over):
    def on_rank(group):
        errors = []
        for _ in range(3):
            try:
                group.all_reduce(np.ones(3 + group.rank))
            except PhalanxError as error:
                errors.append((type(error).__name__, str(error)))
        return errors

    for errors in World(2, over).run(on_rank):
        assert [kind for kind, _ in errors] == ["CollectiveMismatch"] * 3
        assert len(set(errors)) == 1
