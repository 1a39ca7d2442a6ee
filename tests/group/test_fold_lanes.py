"""Lanes add up to the same bits however many ranks there are, and wherever they run."""

import numpy as np
import pytest
from group_lanes import LENGTH, Elsewhere, contribute, lane_values, tree_sum

from phalanx.buffers import blocks, even_part
from phalanx.errors import CollectiveMismatch, ConfigError
from phalanx.testing import World


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@pytest.mark.parametrize(("size", "lanes"), [(1, 8), (2, 8), (3, 8), (4, 8), (5, 7), (3, 3), (4, 6)])
def test_every_number_of_ranks_gets_the_bits_of_the_tree(over, size, lanes):
    def work(group):
        rows, out = contribute(group, lanes)
        for _ in range(3):
            group.fold_lanes(rows, out, lanes=lanes, blocks=blocks(LENGTH, 64))
        return out.tobytes()

    results = World(size, over).run(work)

    assert set(results) == {tree_sum(lanes).tobytes()}


def test_ranks_on_several_hosts_get_the_same_bits():
    def work(group):
        rows, out = contribute(group, 8)
        return group.fold_lanes(rows, out, lanes=8).tobytes()

    results = World(4, "arena", hosts=["a", "a", "b", "b"]).run(work)

    assert set(results) == {tree_sum(8).tobytes()}


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_each_block_is_looked_at_once_and_may_be_changed(over):
    cuts = blocks(LENGTH, 300)

    def work(group):
        rows, out = contribute(group, 4)
        seen = []

        def finish(number, values):
            seen.append((number, values.copy()))
            values *= 2

        group.fold_lanes(rows, out, lanes=4, blocks=cuts, finish=finish)
        return [(number, values.tobytes()) for number, values in seen], out.tobytes()

    results = World(3, over).run(work)

    whole = tree_sum(4)
    seen = sorted(each for looked, _ in results for each in looked)
    assert seen == [(number, whole[cut].tobytes()) for number, cut in enumerate(cuts)]
    assert {out for _, out in results} == {(whole * 2).tobytes()}


@pytest.mark.parametrize("length", [1, 2, 5])
def test_ranks_without_a_block_take_part(length):
    def work(group):
        rows, out = contribute(group, 4, length)
        return group.fold_lanes(rows, out, lanes=4, blocks=blocks(length, 4)).tobytes()

    results = [set(World(4, over).run(work)) for over in ("memory", "arena")]

    assert results == [{tree_sum(4, length).tobytes()}] * 2


def test_a_narrow_wire_rounds_alike_everywhere():
    def work(group):
        rows, out = contribute(group, 4)
        return group.fold_lanes(rows, out, lanes=4, wire="bf16").copy()

    results = World(3, "memory").run(work)

    assert len({each.tobytes() for each in results}) == 1
    np.testing.assert_allclose(results[0], tree_sum(4), rtol=2**-6, atol=60)


def test_a_contribution_is_left_intact():
    def work(group):
        rows, out = contribute(group, 8)
        before = rows.copy()
        group.fold_lanes(rows, out, lanes=8)
        return bool((rows == before).all())

    assert World(3, "arena").run(work) == [True] * 3


def test_impossible_requests_are_refused_in_words():
    def work(group):
        rows, out = contribute(group, 8)
        with pytest.raises(ConfigError, match="one row a piece"):
            group.fold_lanes(rows[:1].copy().reshape(2, -1), out, lanes=8)
        with pytest.raises(ConfigError, match="cannot be shared by 2 ranks"):
            group.fold_lanes(rows, out, lanes=1)
        with pytest.raises(ConfigError, match="allocate"):
            group.fold_lanes(rows.copy(), out, lanes=8)

    World(2, "arena").run(work)


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_ranks_that_do_something_else_are_told(over):
    def work(group):
        rows, out = contribute(group, 2)
        with pytest.raises(CollectiveMismatch, match="fold_lanes"):
            group.fold_lanes(rows, out, lanes=2) if group.rank else group.all_reduce(np.zeros(LENGTH, np.float32))

    World(2, over).run(work)


@pytest.mark.parametrize("over", ["memory", "arena"])
@pytest.mark.parametrize("size", [1, 3])
def test_what_a_rank_adds_up_itself_need_not_be_shown(over, size):
    cuts = blocks(LENGTH, 64)

    def work(group):
        rows, out = group.allocate((1, LENGTH)), group.allocate(LENGTH, shared=True)
        own = even_part(len(cuts), group.size, group.rank)
        rows[0] = lane_values(group.rank)
        for cut in cuts[own]:
            rows[0, cut] = np.nan
        piece = Elsewhere(lane_values(group.rank))
        group.fold_lanes(rows, out, lanes=group.size, blocks=cuts, own=piece)
        return out.tobytes(), piece.asked == [(cut.start, cut.stop) for cut in cuts[own]]

    assert World(size, over).run(work) == [(tree_sum(size).tobytes(), True)] * size
