"""Shares of lanes: every lane once, as even as possible, and where it has been computed already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.buffers import LaneShares, cover, own_lanes
from phalanx.errors import ConfigError


def test_even_shares_are_consecutive_lanes():
    assert LaneShares.even(8, 3).by_rank == ((0, 1, 2), (3, 4, 5), (6, 7))
    assert LaneShares.even(8, 3).pieces(1) == (range(3, 4), range(4, 6))


def test_nobody_computes_again_what_it_has_when_a_rank_of_four_is_lost():
    shares = LaneShares.keeping(8, [[range(2)], [range(2, 4)], [range(6, 8)]])

    assert shares.by_rank == ((0, 1, 4), (2, 3, 5), (6, 7))


def test_a_newcomer_gets_lanes_of_those_who_have_more():
    shares = LaneShares.keeping(8, [[range(2), range(2, 3)], [range(3, 4), range(4, 6)], [range(6, 8)], []])

    assert shares.by_rank == ((0, 1), (4, 5), (6, 7), (2, 3))


def test_of_pieces_that_do_not_fit_together_the_largest_is_kept():
    shares = LaneShares.keeping(8, [[range(1), range(4, 6), range(4, 8)], [range(4)], []])

    assert shares.by_rank == ((0, 4, 5), (1, 2, 3), (6, 7))


@given(st.integers(1, 24), st.data())
def test_shares_are_even_and_keep_what_they_can(lanes, data):
    size = data.draw(st.integers(1, lanes))
    kept = [cover(data.draw(st.sets(st.integers(0, lanes - 1))), lanes) for _ in range(size)]

    shares = LaneShares.keeping(lanes, kept)  # which checks that every lane is there once

    sizes = [len(own) for own in shares.by_rank]
    assert max(sizes) - min(sizes) <= 1
    elsewhere = set()
    for own, pieces in zip(shares.by_rank, kept, strict=True):
        used = set().union(*(piece for piece in pieces if set(piece) <= set(own)))
        for piece in pieces:  # one is given up only for want of room, or if another rank uses it
            assert set(piece) <= used or elsewhere & set(piece) or len(used) + len(piece) > len(own)
        elsewhere |= used


@given(st.integers(1, 40), st.data())
def test_shares_of_ranks_that_kept_nothing_are_even_ones(lanes, data):
    size = data.draw(st.integers(1, lanes))

    assert LaneShares.keeping(lanes, [()] * size) == LaneShares.even(lanes, size)
    assert LaneShares.even(lanes, size).by_rank == tuple(tuple(own_lanes(lanes, size, rank)) for rank in range(size))


@pytest.mark.parametrize("by_rank", [((0,), (0, 1)), ((0, 2), (3,)), ((0, 1), ()), ((1, 0),)])
def test_lanes_that_are_missing_twice_or_out_of_order_are_refused(by_rank):
    with pytest.raises(ConfigError, match="every"):
        LaneShares(by_rank)
