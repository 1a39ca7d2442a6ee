"""A layout holds every element once, in the order in which backward fills buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.buffers import DType
from phalanx.errors import ConfigError
from phalanx.parallel.reduction.layout import BLOCK, CHUNK, ParameterSpec, arrange, lay_out

sizes = st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=12)


def specs_of(lengths):
    return [ParameterSpec(f"p{number}", length) for number, length in enumerate(lengths)]


@given(sizes, st.integers(1, 16 * BLOCK))
def test_blocks_cover_every_element_of_every_parameter_once(lengths, bucket_bytes):
    layout = lay_out(specs_of(lengths), bucket_bytes)

    for number, length in enumerate(lengths):
        blocks = [block for block in layout.blocks if block.parameter == number]
        covered = [element for block in blocks for element in (block.start, block.stop)]
        assert covered[0] == 0
        assert covered[-1] == length
        assert covered[1:-1:2] == covered[2::2]


@given(sizes, st.integers(1, 16 * BLOCK))
def test_chunks_cover_every_place_and_never_two(lengths, bucket_bytes):
    layout = lay_out(specs_of(lengths), bucket_bytes)

    number = 0
    for bucket in layout.buckets:
        assert bucket.first_chunk == number
        covered = [range(chunk.start, chunk.stop) for chunk in bucket.chunks]
        assert sum(map(len, covered)) == sum(lengths[each] for each in bucket.parameters)
        for parameter, place in zip(bucket.parameters, bucket.places, strict=True):
            inside = [chunk for chunk in covered if place.start <= chunk.start < place.stop]
            assert sum(map(len, inside)) == lengths[parameter]
            assert all(chunk.stop <= place.stop and len(chunk) <= CHUNK for chunk in inside)
            numbers = [number + covered.index(chunk) for chunk in inside]
            assert {layout.parameter_of_chunk(each) for each in numbers} <= {parameter}
        number += len(bucket.chunks)
    assert layout.chunks == number


def test_a_block_is_found_in_its_bucket():
    (bucket,) = lay_out(specs_of([BLOCK + 5, 7]), 40 * BLOCK).buckets

    assert [bucket.find(block) for block in bucket.blocks] == [
        slice(0, 7),
        slice(64, 64 + BLOCK),
        slice(64 + BLOCK, 69 + BLOCK),
    ]


def test_the_last_parameters_leave_first():
    layout = lay_out(specs_of([10, 20, 30]), 120)

    assert [bucket.parameters for bucket in layout.buckets] == [(2,), (1, 0)]
    assert [bucket.first_chunk for bucket in layout.buckets] == [0, 1]


def test_parameters_begin_at_cache_lines():
    (bucket,) = lay_out(specs_of([1, 65, 7]), 4000).buckets

    assert [place.start for place in bucket.places] == [0, 64, 192]
    assert bucket.length == 193


def test_buckets_may_be_given_in_any_order_and_leave_as_backward_completes_them():
    layout = arrange(specs_of([1, 2, 3, 4]), [[0, 2], [], [3], [1]])

    assert [bucket.parameters for bucket in layout.buckets] == [(3,), (1,), (0, 2)]
    assert [bucket.first_chunk for bucket in layout.buckets] == [0, 1, 2]


@pytest.mark.parametrize("filled", [[[0]], [[0, 1], [1]]])
def test_a_parameter_belongs_to_one_bucket(filled):
    with pytest.raises(ConfigError, match="one bucket"):
        arrange(specs_of([1, 2]), filled)


def test_parameters_of_one_kind_share_buckets_and_buffers_leave_last():
    specs = [
        ParameterSpec("a", 10),
        ParameterSpec("b", 10, DType.BF16),
        ParameterSpec("c", 10, is_sharded=True),
        ParameterSpec("d", 10),
        ParameterSpec("mean", 10, is_buffer=True),
    ]

    layout = lay_out(specs, 1000)

    assert [bucket.parameters for bucket in layout.buckets] == [(2,), (1,), (3, 0), (4,)]
    assert [bucket.dtype for bucket in layout.buckets] == [DType.F32, DType.BF16, DType.F32, DType.F32]
    assert [bucket.is_sharded for bucket in layout.buckets] == [True, False, False, False]
    assert [bucket.is_buffer for bucket in layout.buckets] == [False, False, False, True]
