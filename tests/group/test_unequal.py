"""Calls with arrays of unequal lengths."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import BadFrame, CollectiveMismatch, ConfigError, PhalanxError
from phalanx.testing import World

worlds = pytest.mark.parametrize(
    "world",
    [World(3, "tcp"), World(3, "arena"), World(3, "arena", hosts=["a", "a", "b"]), World(1, "tcp")],
    ids=["tcp", "arena", "hosts", "alone"],
)


def rows(source, target, shape=()):
    """What rank ``source`` sends to rank ``target``: its length depends on both, and some are empty."""
    count = (source * 2 + target) % 4
    return np.full((count, *shape), 10 * source + target, np.float32)


@worlds
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0,)])
def test_every_rank_gets_what_the_others_have_for_it(world, shape):
    def on_rank(group):
        return group.all_to_all_unequal([rows(group.rank, target, shape) for target in range(group.size)])

    for target, received in enumerate(world.run(on_rank)):
        for source, array in enumerate(received):
            np.testing.assert_array_equal(array, rows(source, target, shape), strict=True)


@worlds
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_every_rank_gets_its_array_of_the_root(world, shape):
    root = world.size - 1

    def on_rank(group):
        arrays = [rows(root, target, shape) for target in range(group.size)] if group.rank == root else None
        now, later = group.scatter_unequal(arrays, root), group.scatter_unequal_nowait(arrays, root).wait()
        np.testing.assert_array_equal(now, later)
        return now

    for target, array in enumerate(world.run(on_rank)):
        np.testing.assert_array_equal(array, rows(root, target, shape), strict=True)


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.lists(st.integers(0, 70_000), min_size=2, max_size=2), min_size=2, max_size=2))
def test_lengths_beyond_a_staging_buffer_arrive_whole(lengths):
    def on_rank(group):
        mine = [np.arange(length) * (group.rank + 1) for length in lengths[group.rank]]
        return group.all_to_all_unequal(mine)

    for rank, received in enumerate(World(2, "arena").run(on_rank)):
        for source, array in enumerate(received):
            np.testing.assert_array_equal(array, np.arange(lengths[source][rank]) * (source + 1))


def test_tensors_arrive_as_tensors():
    torch = pytest.importorskip("torch")

    def on_rank(group):
        own = [torch.full((rank + 1,), group.rank, dtype=torch.bfloat16) for rank in range(2)]
        exchanged = group.all_to_all_unequal(own)
        scattered = group.scatter_unequal(own if group.rank == 0 else None)
        assert {each.dtype for each in [*exchanged, scattered]} == {torch.bfloat16}
        return [each.tolist() for each in exchanged], scattered.tolist()

    assert World(2, "arena").run(on_rank) == [([[0], [1]], [0]), ([[0, 0], [1, 1]], [0, 0])]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([np.ones(1)], "a list of 2 arrays, one for each rank"),
        (np.ones((2, 2)), "a list of 2 arrays, one for each rank"),
        ([np.ones(1), np.array(1.0)], "array 1 has 0 axes"),
        ([np.ones(1), np.ones(1, np.float32)], "array 1 has rows of f32"),
        ([np.ones((1, 2)), np.ones((1, 3))], r"array 1 has rows of f64 \(3,\), and array 0 has rows of f64 \(2,\)"),
        ([np.ones(1), [1.0]], "array 1 must be an array"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(arrays, words):
    def on_rank(group):
        for call in (group.all_to_all_unequal, lambda each: group.scatter_unequal(each, group.rank)):
            with pytest.raises(ConfigError, match=words):
                call(arrays)
        with pytest.raises(ConfigError, match="the root must pass a list of 2 arrays"):
            group.scatter_unequal(None, group.rank)

    World(2, "tcp").run(on_rank)


def test_ranks_that_disagree_about_their_rows_are_told_so():
    def on_rank(group):
        with pytest.raises(CollectiveMismatch, match=r"rows of 2 f64.*rows of 1 f64|rows of 1 f64.*rows of 2 f64"):
            group.all_to_all_unequal([np.ones((1, 1 + group.rank))] * 2)

    World(2, "arena").run(on_rank)


def test_lengths_that_no_memory_holds_are_not_believed():
    def on_rank(group):
        if group.rank == 0:
            with suppress(PhalanxError):
                group.all_gather(np.array([2**60, 1, 1]))  # what the first half of the others looks like
                group.barrier()
            return
        with pytest.raises(BadFrame, match="rank 0 told lengths or types of arrays that make no sense"):
            group.all_gather_unequal(np.ones(2))

    World(2, "arena").run(on_rank)
