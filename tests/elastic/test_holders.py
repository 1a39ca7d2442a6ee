"""Who holds which block of the optimizer state, and what moves when the members change."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.elastic.holders import REDUNDANCY, Handover, find_lost, share_state


@st.composite
def members(draw, most=4):
    """Hosts, each with some of the ranks, in any order."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=most))
    ranks = iter(draw(st.permutations(range(sum(counts)))))
    return [tuple(sorted(itertools.islice(ranks, count))) for count in counts]


@st.composite
def situations(draw):
    """Sizes of blocks, who holds which of them, each at least one rank, and the hosts of all ranks."""
    sizes = draw(st.lists(st.integers(0, 100), min_size=1, max_size=40))
    hosts = draw(members())
    ranks = sum(map(len, hosts))
    held = [set() for _ in range(ranks)]
    for block in range(len(sizes)):
        for rank in draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=3)):
            held[rank].add(block)
    return sizes, held, hosts


def loads_of(sizes, holders, ranks):
    return [sum(max(size, 1) for size, own in zip(sizes, holders, strict=True) if rank in own) for rank in range(ranks)]


def everything(sizes, ranks):
    return [set(range(len(sizes)))] * ranks


@settings(deadline=None, max_examples=300)
@given(situations(), st.integers(1, 3))
def test_every_block_has_its_holders_on_as_many_hosts_as_possible(situation, redundancy):
    sizes, held, hosts = situation
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}

    holding = share_state(sizes, held, hosts, redundancy)

    for ranks in holding.holders:
        assert len(ranks) == len(set(ranks)) == min(redundancy, len(held))
        assert len({host_of[rank] for rank in ranks}) == min(redundancy, len(hosts))


@settings(deadline=None, max_examples=300)
@given(situations())
def test_ranks_get_what_they_lack_from_ranks_that_have_it_and_nothing_else_moves(situation):
    sizes, held, hosts = situation

    holding = share_state(sizes, held, hosts, REDUNDANCY)

    assert all(each.block in held[each.source] for each in holding.handovers)
    arrived = [{each.block for each in holding.handovers if each.target == rank} for rank in range(len(held))]
    assert [holding.of(rank) - held[rank] for rank in range(len(held))] == arrived
    assert len(holding.handovers) == sum(map(len, arrived))


@settings(deadline=None, max_examples=300)
@given(situations())
def test_ranks_of_a_host_hold_equal_shares_to_within_one_block(situation):
    sizes, held, hosts = situation

    holding = share_state(sizes, held, hosts, REDUNDANCY)

    loads = loads_of(sizes, holding.holders, len(held))
    for host in hosts:
        assert max(loads[rank] for rank in host) - min(loads[rank] for rank in host) <= max(*sizes, 1)


@settings(deadline=None, max_examples=300)
@given(situations(), st.integers(1, 4), st.integers(1, 4))
def test_all_ranks_hold_and_own_equal_shares_if_hosts_have_equally_many(situation, count, ranks):
    sizes, held, _ = situation
    hosts = [tuple(range(host * ranks, (host + 1) * ranks)) for host in range(count)]
    size = count * ranks
    held = [set().union(*held[rank::size]) for rank in range(size)]

    holding = share_state(sizes, held, hosts, REDUNDANCY)

    loads = loads_of(sizes, holding.holders, size)
    assert max(loads) - min(loads) <= max(*sizes, 1)


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), members())
def test_nothing_moves_if_all_have_everything(sizes, hosts):
    ranks = sum(map(len, hosts))

    assert share_state(sizes, everything(sizes, ranks), hosts, REDUNDANCY).handovers == ()


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), members())
def test_nothing_moves_if_nobody_came_or_went(sizes, hosts):
    ranks = sum(map(len, hosts))
    before = share_state(sizes, everything(sizes, ranks), hosts, REDUNDANCY)

    after = share_state(sizes, [before.of(rank) for rank in range(ranks)], hosts, REDUNDANCY)

    assert after.handovers == ()
    assert after.owners == before.owners


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(2, 8), st.data())
def test_after_a_loss_only_the_blocks_of_the_lost_rank_move_and_some_to_even_out(sizes, ranks, data):
    before = share_state(sizes, everything(sizes, ranks), [range(ranks)], REDUNDANCY)
    lost = data.draw(st.integers(0, ranks - 1))
    held = [before.of(rank) for rank in range(ranks) if rank != lost]

    after = share_state(sizes, held, [range(ranks - 1)], REDUNDANCY)

    moved = sum(max(sizes[each.block], 1) for each in after.handovers)
    needed = sum(max(sizes[block], 1) for block in before.of(lost)) if ranks > 2 else 0
    assert find_lost(len(sizes), held) == []
    assert needed <= moved <= needed + 2 * max(*sizes, 1) * (ranks - 1)


def test_a_newcomer_gets_its_share_from_several():
    before = share_state([1] * 12, everything([1] * 12, 3), [(0,), (1,), (2,)], REDUNDANCY)

    after = share_state([1] * 12, [*map(before.of, range(3)), ()], [(0,), (1,), (2,), (3,)], REDUNDANCY)

    assert [len(after.of(rank)) for rank in range(4)] == [6, 6, 6, 6]
    assert {each.target for each in after.handovers} == {3}
    assert {each.source for each in after.handovers} == {0, 1, 2}


def test_a_newcomer_gets_a_block_from_its_own_host():
    holding = share_state([1], [{0}, {0}, ()], [(0,), (1, 2)], 3)

    assert holding.handovers == (Handover(0, 1, 2),)


def test_blocks_that_nobody_holds_are_lost():
    assert find_lost(5, [{0, 3}, {3, 4}]) == [1, 2]


@pytest.mark.parametrize("redundancy", [1, 2])
def test_every_block_has_one_owner_and_ranks_own_equal_shares(redundancy):
    holding = share_state([1] * 12, everything([1] * 12, 4), [(0, 1), (2, 3)], redundancy)

    assert sorted(holding.owners) == sorted([*range(4)] * 3)
