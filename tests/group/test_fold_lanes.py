"""Lanes add up to the same bits however many ranks there are, and wherever they run."""

import numpy as np
import pytest
from group_lanes import LENGTH, blocks_of, contribute, lane_values, tree_sum

from phalanx.buffers import square_norm
from phalanx.collectives import Finish
from phalanx.errors import CollectiveMismatch, ConfigError
from phalanx.testing import World


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@pytest.mark.parametrize(("size", "lanes"), [(1, 8), (2, 8), (3, 8), (4, 8), (5, 7), (3, 3), (4, 6)])
def test_every_number_of_ranks_gets_the_bits_of_the_tree(over, size, lanes):
    def work(group):
        rows, out = contribute(group, lanes)
        for _ in range(3):
            group.fold_lanes(rows, out, lanes=lanes, blocks=blocks_of(LENGTH, 64))
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
def test_each_block_is_divided_and_measured_by_one_rank(over):
    cuts = blocks_of(LENGTH, 300)

    def work(group):
        rows, out = contribute(group, 4)
        finish = Finish(np.array([1.0, 1.0]), np.zeros(len(cuts)))
        group.fold_lanes(rows, out, lanes=4, blocks=cuts, finish=finish)
        assert set(np.flatnonzero(finish.squares)) == set(group.blocks_added_here(len(cuts)))
        return finish.squares, out.tobytes()

    results = World(3, over).run(work)

    halved = tree_sum(4) / 2
    assert sum(squares for squares, _ in results).tolist() == [square_norm(halved[cut]) for cut in cuts]
    assert {out for _, out in results} == {halved.tobytes()}


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_an_earlier_call_in_the_queue_may_fill_the_counts(over):
    def work(group):
        rows, out = contribute(group, 3)
        counts = np.zeros(3)
        counts[group.rank] = 2.0
        filled = group.all_reduce_nowait(counts)
        folded = group.fold_lanes_nowait(rows, out, lanes=3, finish=Finish(counts))
        filled.wait()
        return folded.wait().tobytes()

    assert set(World(3, over).run(work)) == {(tree_sum(3) / np.float32(6)).tobytes()}


@pytest.mark.parametrize("length", [1, 2, 5])
def test_ranks_without_a_block_take_part(length):
    def work(group):
        rows, out = contribute(group, 4, length)
        return group.fold_lanes(rows, out, lanes=4, blocks=blocks_of(length, 4)).tobytes()

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
def test_blocks_that_a_rank_adds_up_first_may_lie_elsewhere(over, size):
    cuts = blocks_of(LENGTH, 64)

    def work(group):
        rows, out = group.allocate((1, LENGTH)), group.allocate(LENGTH, shared=True)
        rows[0] = lane_values(group.rank)
        own = {number: rows[0, cuts[number]].copy() for number in group.blocks_added_first(len(cuts))}
        for number in own:
            rows[0, cuts[number]] = np.nan
        return group.fold_lanes(rows, out, lanes=group.size, blocks=cuts, own=own).tobytes()

    assert set(World(size, over).run(work)) == {tree_sum(size).tobytes()}


def test_a_finish_or_own_blocks_that_make_no_sense_are_refused_in_words():
    cuts = blocks_of(LENGTH, 300)

    def work(group):
        rows, out = contribute(group, 2)
        values = np.zeros(300, np.float32)
        for finish, words in [
            (Finish(counts=np.ones(2, np.float32)), "counts of a Finish are f64"),
            (Finish(squares=np.ones(3)), "one square for each of the 4 blocks"),
        ]:
            with pytest.raises(ConfigError, match=words):
                group.fold_lanes(rows, out, lanes=2, blocks=cuts, finish=finish)
        other = next(number for number in range(2) if number not in group.blocks_added_first(2))
        for own, words in [
            ({3 * other: values}, "not the first to add up block"),
            ({3 * (1 - other): values[:7]}, "have shape"),
        ]:
            with pytest.raises(ConfigError, match=words):
                group.fold_lanes(rows, out, lanes=2, blocks=cuts, own=own)

    World(2, "arena").run(work)
