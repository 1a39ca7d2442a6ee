"""The flat space holds every element once, in an order that backward fills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.parallel.flat import BLOCK, Entry, arrange, lay_out

sizes = st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=12)


def entries_of(lengths):
    return [Entry(f"p{number}", length) for number, length in enumerate(lengths)]


@given(sizes, st.integers(1, 4 * BLOCK))
def test_blocks_cover_every_element_of_every_parameter_once(lengths, bucket_elements):
    layout = lay_out(entries_of(lengths), bucket_elements)

    for number, length in enumerate(lengths):
        covered = [element for block in layout.blocks if block.entry == number for element in (block.start, block.stop)]
        assert covered[0] == 0
        assert covered[-1] == length
        assert covered[1:-1:2] == covered[2::2]


@given(sizes, st.integers(1, 4 * BLOCK))
def test_cuts_cover_the_bucket_and_begin_where_their_blocks_do(lengths, bucket_elements):
    for bucket in lay_out(entries_of(lengths), bucket_elements).buckets:
        ends = [0, *(cut.stop for cut in bucket.cuts)]

        assert [cut.start for cut in bucket.cuts] == ends[:-1]
        assert ends[-1] == bucket.length
        for block, cut in zip(bucket.blocks, bucket.cuts, strict=True):
            place = bucket.places[bucket.entries.index(block.entry)]
            assert cut.start == place.start + block.start
            assert cut.stop >= place.start + block.stop


def test_the_last_parameters_leave_first():
    layout = lay_out(entries_of([10, 20, 30]), 30)

    assert [bucket.entries for bucket in layout.buckets] == [(2,), (1, 0)]
    assert [bucket.first_block for bucket in layout.buckets] == [0, 1]


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
