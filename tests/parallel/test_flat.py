"""The flat space holds every element once, in an order that backward fills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.parallel.reduction.layout import BLOCK, CHUNK, ParameterSpec, arrange, lay_out

sizes = st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=12)


def entries_of(lengths):
    return [ParameterSpec(f"p{number}", length) for number, length in enumerate(lengths)]


@given(sizes, st.integers(1, 4 * BLOCK))
def test_blocks_cover_every_element_of_every_parameter_once(lengths, bucket_elements):
    layout = lay_out(entries_of(lengths), bucket_elements)

    for number, length in enumerate(lengths):
        covered = [element for block in layout.blocks if block.entry == number for element in (block.start, block.stop)]
        assert covered[0] == 0
        assert covered[-1] == length
        assert covered[1:-1:2] == covered[2::2]


@given(sizes, st.integers(1, 4 * BLOCK))
def test_cuts_cover_every_place_and_never_two(lengths, bucket_elements):
    layout = lay_out(entries_of(lengths), bucket_elements)

    number = 0
    for bucket in layout.buckets:
        assert bucket.first_cut == number
        covered = [range(cut.start, cut.stop) for cut in bucket.cuts]
        assert sum(map(len, covered)) == sum(lengths[entry] for entry in bucket.entries)
        for entry, place in zip(bucket.entries, bucket.places, strict=True):
            inside = [cut for cut in covered if place.start <= cut.start < place.stop]
            assert sum(map(len, inside)) == lengths[entry]
            assert all(cut.stop <= place.stop and len(cut) <= CHUNK for cut in inside)
            numbers = [number + covered.index(cut) for cut in inside]
            assert {layout.entry_of_cut(each).name for each in numbers} <= {f"p{entry}"}
        number += len(bucket.cuts)
    assert layout.cuts == number


def test_a_block_is_found_in_its_bucket():
    (bucket,) = lay_out(entries_of([BLOCK + 5, 7]), 10 * BLOCK).buckets

    assert [bucket.find(block) for block in bucket.blocks] == [
        slice(0, 7),
        slice(64, 64 + BLOCK),
        slice(64 + BLOCK, 69 + BLOCK),
    ]


def test_the_last_parameters_leave_first():
    layout = lay_out(entries_of([10, 20, 30]), 30)

    assert [bucket.entries for bucket in layout.buckets] == [(2,), (1, 0)]
    assert [bucket.first_cut for bucket in layout.buckets] == [0, 1]


def test_parameters_begin_at_cache_lines():
    (bucket,) = lay_out(entries_of([1, 65, 7]), 1000).buckets

    assert [place.start for place in bucket.places] == [0, 64, 192]
    assert bucket.length == 193


def test_buckets_may_be_given():
    layout = arrange(entries_of([1, 2, 3]), [[0, 2], [1]])

    assert [bucket.entries for bucket in layout.buckets] == [(0, 2), (1,)]


@pytest.mark.parametrize("filled", [[[0]], [[0, 1], [1]]])
def test_a_parameter_belongs_to_one_bucket(filled):
    with pytest.raises(ConfigError, match="one bucket"):
        arrange(entries_of([1, 2]), filled)
