"""Depositing lanes one after another leaves the rank's pieces in the first rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.buffers import cover, own_lanes, pieces, plan_lanes
from phalanx.parallel.reduction.lanes import count_rows, plan_deposits, seed_of


@given(st.integers(1, 40), st.data())
def test_deposits_leave_the_pieces_in_order_also_of_pieces_that_were_kept(lanes, data):
    own = sorted(data.draw(st.sets(st.integers(0, lanes - 1), min_size=1)))
    some = st.sets(st.integers(0, lanes - 1))
    kept = {*cover(data.draw(some), lanes), *cover(data.draw(some), lanes)}
    planned = plan_lanes(own, kept)
    deposits = plan_deposits(planned, lanes)
    rows = [None] * count_rows(plan_deposits(plan_lanes(own, ()), lanes))

    def tree(node):
        if len(node) == 1:
            return node[0]
        half = pieces(node.start, node.stop - 1, lanes)[0]
        return (tree(half), tree(range(half.stop, node.stop)))

    for each, deposit in zip(planned, deposits, strict=True):
        rows[deposit.row] = (rows[deposit.row], tree(each)) if deposit.is_added else tree(each)
        for left, right in deposit.merges:
            rows[left] = (rows[left], rows[right])

    spans = cover(own, lanes)
    assert rows[: len(spans)] == [tree(span) for span in spans]
    for each in kept:
        assert not set(each) <= set(own) or any(set(each) <= set(lanes) for lanes in planned)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 1), (4, 2), (8, 3), (64, 6)])
def test_rows_grow_with_the_levels_and_not_with_the_lanes(count, rows):
    assert count_rows(plan_deposits(plan_lanes(range(count), ()), count)) == rows


def test_ranks_own_all_lanes_as_evenly_as_can_be():
    assert [own_lanes(8, 3, rank) for rank in range(3)] == [range(3), range(3, 6), range(6, 8)]


def test_every_lane_of_every_step_has_a_seed_of_its_own():
    seeds = {seed_of(seed, step, lane) for seed in range(3) for step in range(20) for lane in range(8)}

    assert len(seeds) == 480
    assert all(0 <= seed < 2**63 for seed in seeds)
