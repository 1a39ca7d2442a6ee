import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.parallel.optimizer import Label, locate, parse_label
from phalanx.parallel.reduction import Block, ParameterSpec, lay_out
from phalanx.parallel.reduction.ownership import (
    Ownership,
    Way,
    layers_of,
    share_blocks,
    share_units,
)

sizes = st.lists(st.integers(0, 2**20), min_size=1, max_size=12)


def spread(sizes: list[int], ranks: int, before: list[int] | None = None) -> Ownership:
    blocks = lay_out([ParameterSpec(str(number), size) for number, size in enumerate(sizes)], 2**22).blocks
    owners = share_blocks([block.stop - block.start for block in blocks], before or [0] * ranks)
    return Ownership(blocks, tuple(owners))


@settings(deadline=None)
@given(sizes, st.integers(1, 9))
def test_blocks_of_all_ranks_are_disjoint_and_cover_every_parameter(sizes, ranks):
    ownership = spread(sizes, ranks)

    owned = sorted((block.parameter, block.start, block.stop) for rank in range(ranks) for block in ownership.of(rank))
    for entry, size in enumerate(sizes):
        ends = [(start, stop) for number, start, stop in owned if number == entry]
        assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
        assert ends[-1][1] == size


@settings(deadline=None, max_examples=400)
@given(sizes, st.integers(1, 9), st.data())
def test_every_rank_has_an_equal_part_to_within_one_block_whatever_it_has_of_others(sizes, ranks, data):
    before = data.draw(st.lists(st.integers(0, 2**22), min_size=ranks, max_size=ranks))

    ownership = spread(sizes, ranks, before)

    largest = max(block.stop - block.start for block in ownership.blocks)
    for rank in range(ranks):
        assert abs(ownership.elements(rank) - sum(sizes) / ranks) <= largest


def test_neighbours_go_to_different_ranks():
    ownership = spread([2**20], 4)

    assert sorted(ownership.owners) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", Way)
def test_groups_of_one_parameter_each_are_shared_out_too(way):
    before = [0, 0, 0]
    for _ in range(6):
        (owner,) = share_units([7], before, way)
        before[owner] += 7

    assert before == [14, 14, 14]


def test_groups_of_one_block_each_are_shared_out_too():
    before = [0, 0]
    for size in (5, 4, 3, 2):
        (owner,) = share_blocks([size], before)
        before[owner] += size

    assert before == [7, 7]


def test_elements_know_their_owner():
    ownership = Ownership((Block(0, 0, 5), Block(1, 3, 9), Block(1, 0, 3)), (0, 2, 1))

    assert [ownership.owner_at(0, 4), ownership.owner_at(1, 2), ownership.owner_at(1, 3)] == [0, 1, 2]
    assert [ownership.elements(rank) for rank in range(4)] == [5, 3, 6, 0]


def test_units_go_round():
    assert share_units([1] * 5, [0] * 3, Way.ROUND_ROBIN) == [0, 1, 2, 0, 1]


def test_units_lie_in_ranges_of_which_the_first_have_one_more():
    assert share_units([1] * 5, [0] * 3, Way.CONTIGUOUS) == [0, 0, 1, 1, 2]


def test_one_large_unit_outweighs_many_small_ones():
    owners = share_units([10, 1, 1, 1, 7], [0, 0], Way.BALANCED)

    assert owners == [0, 1, 1, 1, 1]


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_balanced_ranks_differ_by_at_most_one_unit(sizes, ranks):
    owners = share_units(sizes, [0] * ranks, Way.BALANCED)

    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max(sizes, default=0)


@pytest.mark.parametrize("share", [lambda: share_units([1], [], Way.BALANCED), lambda: share_blocks([], [])])
def test_nobody_owns_nothing_of_something(share):
    with pytest.raises(ConfigError, match="at least 1 rank"):
        share()


def test_parameters_of_a_layer_are_those_with_its_number():
    names = ["embedding.weight", "blocks.0.norm.weight", "blocks.1.up.0.weight", "blocks.1.up.1.weight", "norm.weight"]

    assert layers_of(names) == [[0], [1], [2, 3], [4]]


@given(st.text(), st.text(st.characters(exclude_characters=".[]")), st.none() | st.tuples(*[st.integers(0, 99)] * 2))
def test_a_label_is_read_as_it_was_written(name, key, span):
    label = Label(name, key, span)

    assert parse_label(str(label)) == label


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).map(sorted), st.data())
def test_elements_are_found_wherever_spans_begin_and_end(ends, data):
    spans = data.draw(st.permutations(list(itertools.pairwise(ends))))
    start = data.draw(st.integers(ends[0], ends[-1]))
    wanted = slice(start, data.draw(st.integers(start, ends[-1])))

    found = list(locate(wanted, spans, "weight.exp_avg"))

    places = [
        (spans[each.number][0] + at, wanted.start + to)
        for each in found
        for at, to in zip(range(50)[each.source], range(50)[each.target], strict=True)
    ]
    assert places == [(number, number) for number in range(wanted.start, wanted.stop)]


@pytest.mark.parametrize("spans", [[], [(0, 4), (5, 9)], [(3, 9)], [(0, 8)]])
def test_elements_that_are_in_no_span_are_named(spans):
    with pytest.raises(ConfigError, match=r"elements \d to \d of weight.exp_avg are missing"):
        list(locate(slice(0, 9), spans, "weight.exp_avg"))
