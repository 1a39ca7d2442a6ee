"""Ranks that do not call the same thing all learn it, in both sides' words."""

import numpy as np
import pytest
from group_lanes import blocks_of

from phalanx.buffers import even_part, pieces
from phalanx.testing import World

F32, F64 = np.float32, np.float64


def scatter_lanes(owners, lanes=8):
    def call(group):
        own = even_part(lanes, group.size, group.rank)
        rows = group.allocate((len(pieces(own.start, own.stop, lanes)), 8))
        group.scatter_lanes(rows, np.ones(8, F32), lanes=lanes, blocks=blocks_of(8, 4), owners=owners)

    return call


def broadcast_blocks(block, owners):
    return lambda group: group.broadcast_blocks(group.allocate(8), blocks=blocks_of(8, block), owners=owners)


DISAGREEMENTS = {
    "operation": (lambda g: g.all_reduce(np.ones(8, F32)), lambda g: g.all_gather(np.ones(8, F32))),
    "reduction": (lambda g: g.all_reduce(np.ones(8, F32), "sum"), lambda g: g.all_reduce(np.ones(8, F32), "max")),
    "type": (lambda g: g.all_reduce(np.ones(8, F32)), lambda g: g.all_reduce(np.ones(8, np.int32))),
    "length": (lambda g: g.all_reduce(np.ones(8, F32)), lambda g: g.all_reduce(np.ones(9, F32))),
    "nothing against something": (lambda g: g.all_reduce(np.ones(0, F32)), lambda g: g.all_reduce(np.ones(9, F32))),
    "large length": (lambda g: g.all_reduce(np.ones(800_000, F32)), lambda g: g.all_reduce(np.ones(800_001, F32))),
    "root": (lambda g: g.broadcast(np.ones(8, F32), 0), lambda g: g.broadcast(np.ones(8, F32), 1)),
    "barrier": (lambda g: g.barrier(), lambda g: g.all_reduce(np.ones(8, F32))),
    "rows": (lambda g: g.all_gather_unequal(np.ones((2, 3))), lambda g: g.all_gather_unequal(np.ones((2, 4)))),
    "owners of sums": (scatter_lanes([0, 1]), scatter_lanes([1, 0])),
    "lanes": (scatter_lanes([0, 1]), scatter_lanes([0, 1], lanes=7)),
    "owners of blocks": (broadcast_blocks(4, [0, 1]), broadcast_blocks(4, [1, 0])),
    "blocks": (broadcast_blocks(4, [0, 1]), broadcast_blocks(5, [0, 1])),
    "order": (
        lambda g: (g.all_reduce(np.ones(8, F32)), g.broadcast(np.ones(8, F32))),
        lambda g: (g.broadcast(np.ones(8, F32)), g.all_reduce(np.ones(8, F32))),
    ),
}


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))])
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_every_rank_hears_of_a_disagreement_in_both_sides_words(what, odd, size, over):
    usual, other = DISAGREEMENTS[what]

    def on_rank(group):
        (other if group.rank == odd else usual)(group)
        group.barrier()  # who only sent may learn of it in its next call

    outcomes = World(size, over, timeout_s=100).start(on_rank).outcomes()  # nobody waits for a deadline

    for outcome in outcomes:
        assert outcome.kind == "CollectiveMismatch", outcome
        assert f"rank {odd} is in" in outcome.words, outcome.words
        assert outcome.words.count(" is in ") == 2


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_a_rank_with_nothing_learns_at_once_that_others_have_something(over):
    def on_rank(group):
        group.all_reduce(np.ones(9 if group.rank == 1 else 0, F32))

    outcomes = World(3, over).start(on_rank).outcomes()

    assert [outcome.kind for outcome in outcomes] == ["CollectiveMismatch"] * 3


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_different_wire_types_are_a_disagreement_where_there_is_a_wire(over):
    def on_rank(group):
        return group.all_reduce(np.ones(8, F32), wire="bf16" if group.rank else None)

    outcomes = World(2, over, hosts=["a", "b"]).start(on_rank).outcomes()

    assert {outcome.kind for outcome in outcomes} == {"CollectiveMismatch"}


def test_sends_and_receives_that_differ_are_a_disagreement():
    def on_rank(group):
        if group.rank == 0:
            group.send(np.ones(4, F32), 1)
            group.barrier()
        else:
            group.recv(np.ones(5, F32), 0)

    outcomes = World(2, "tcp").start(on_rank).outcomes()

    for outcome in outcomes:
        assert outcome.kind == "CollectiveMismatch", outcome
        assert "4 f32" in outcome.words
        assert "5 f32" in outcome.words


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_ranks_of_a_subgroup_are_named_as_the_world_knows_them(over):
    def on_rank(group):
        if group.rank > 0:
            group.subgroup([2, 1]).all_reduce(np.ones(8 + group.rank, F32))

    outcomes = World(3, over).start(on_rank).outcomes()

    for outcome in outcomes[1:]:
        assert outcome.kind == "CollectiveMismatch", outcome
        assert "rank 1 is in call" in outcome.words
        assert "rank 2 is in call" in outcome.words
