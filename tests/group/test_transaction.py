"""A step counts for every rank, or for nobody."""

import os

import numpy as np
import pytest

from phalanx.errors import ConfigError, EpochChanged, NonFiniteGradient, RemoteError, WeightsDiverged
from phalanx.group import alone
from phalanx.testing import World

SAME = b"0123456789abcdef"


def test_every_rank_hears_that_its_steps_count():
    def work(group):
        for _ in range(20):
            group.commit(1.5, SAME)
        return group.lanes

    assert World(3, lanes=8).run(work) == [8, 8, 8]


def test_a_group_of_one_commits_by_itself():
    with alone(lanes=4) as group:
        group.commit(1.0, SAME)

        assert group.lanes == 4


def test_no_rank_commits_what_another_is_not_done_with():
    committed = []

    def work(group):
        if group.rank == 0:
            group.recv(np.zeros(1), 1)
        group.commit(1.0, SAME)
        committed.append(group.rank)

    def work_late(group):
        if group.rank == 1:
            assert not committed
            group.send(np.ones(1), 0)
        return work(group)

    World(2, lanes=2).run(work_late)

    assert sorted(committed) == [0, 1]


def test_other_weights_halt_everybody_and_name_the_odd_rank():
    def work(group):
        with pytest.raises(WeightsDiverged, match="rank 2 has other weights") as caught:
            group.commit(1.0, SAME if group.rank != 2 else b"x" * 16)
        return caught.value.rank, caught.value.step

    assert World(4, lanes=4).run(work) == [(2, 0)] * 4


@pytest.mark.parametrize("kind", [NonFiniteGradient, RemoteError])
def test_a_halt_reaches_those_who_compute_and_those_who_wait(kind):
    def work(group):
        group.commit(1.0, SAME)
        if group.rank == 1:
            group.halt(kind("it is not finite", step=1, rank=1))
        with pytest.raises(kind, match="it is not finite") as caught:
            group.all_reduce(np.ones(3)) if group.rank == 2 else group.commit(1.0, SAME)
        return caught.value.rank, caught.value.step

    assert World(3, lanes=4).run(work) == [(1, 1)] * 3


@pytest.mark.parametrize("over", ["tcp", "arena"])
def test_a_rank_that_dies_before_the_commit_is_named_on_all_others(over):
    def work(group):
        group.commit(1.0, SAME)
        if group.rank == 1:
            os._exit(1)
        with pytest.raises(EpochChanged, match="rank 1"):
            group.commit(1.0, SAME)
        return "told"

    outcomes = World(3, over, processes=True, lanes=4).start(work).outcomes()

    assert [(each.rank, each.unwrap()) for each in outcomes] == [(0, "told"), (2, "told")]


def test_fewer_lanes_than_ranks_are_refused():
    with pytest.raises(ConfigError, match="2 lanes are too few for 3 workers"):
        World(3, lanes=2).run(lambda group: group.rank)
