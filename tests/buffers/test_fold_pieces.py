"""Pieces of any cut of the lanes add up to the bits of the tree over single lanes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import DType, ReduceOp, fold, fold_pieces, pieces, round_to_bf16, square_norm


def lanes_of(count, length, seed=0):
    values = np.random.default_rng(seed).normal(size=(count, length)) * 10.0 ** np.arange(count)[:, None]
    return values.astype(np.float32)


@settings(deadline=None)
@given(st.integers(1, 12), st.data())
def test_any_cut_of_the_lanes_gives_the_bits_of_the_whole_tree(leaves, data):
    lanes = lanes_of(leaves, 37)
    cuts = sorted(data.draw(st.sets(st.integers(1, leaves - 1)) if leaves > 1 else st.just(set())))
    bounds = [0, *cuts, leaves]
    spans = [each for start, stop in itertools.pairwise(bounds) for each in pieces(start, stop, leaves)]
    expected, out = np.empty(37, np.float32), np.empty(37, np.float32)
    fold(ReduceOp.SUM, DType.F32, list(lanes), expected)

    inputs = []
    for span in spans:
        inputs.append(np.empty(37, np.float32))
        fold(ReduceOp.SUM, DType.F32, list(lanes[span.start : span.stop]), inputs[-1])
    fold_pieces(DType.F32, spans, inputs, out)

    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_sum_is_divided_and_then_measured(count):
    spans = [range(lane, lane + 1) for lane in range(count)]
    out = np.empty(5, np.float32)

    square = fold_pieces(DType.F32, spans, list(np.ones((count, 5), np.float32)), out, divisor=4.0, is_measured=True)

    np.testing.assert_array_equal(out, np.full(5, count / 4, np.float32))
    assert square == 5 * (count / 4) ** 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_narrow_pieces_are_added_up_divided_and_measured_in_f32_and_rounded_once(count):
    narrow = np.empty((count, 4), np.uint16)
    round_to_bf16(np.full(count * 4, 1.0 + 2**-7, np.float32), narrow.reshape(-1))
    out, divided = np.empty(4, np.uint16), np.full(4, count * (1.0 + 2**-7), np.float32) / np.float32(3)
    spans = [range(lane, lane + 1) for lane in range(count)]

    square = fold_pieces(DType.BF16, spans, list(narrow), out, divisor=3.0, is_measured=True)

    expected = np.empty(4, np.uint16)
    round_to_bf16(divided, expected)
    np.testing.assert_array_equal(out, expected)
    assert square == square_norm(divided)


def test_a_single_piece_may_be_the_place_of_the_sum():
    whole = np.arange(6, dtype=np.float32)

    fold_pieces(DType.F32, [range(8)], [whole], whole, divisor=2.0)

    np.testing.assert_array_equal(whole, np.arange(6) / 2)


@pytest.mark.parametrize("length", [0, 5, 4096, 10_000])
def test_a_square_norm_is_close_to_that_in_f64(length):
    values = np.random.default_rng(1).normal(size=length).astype(np.float32)

    assert square_norm(values) == pytest.approx(float(np.square(values, dtype=np.float64).sum()), rel=1e-5)


def test_a_square_norm_survives_values_whose_squares_need_more_than_f32():
    assert square_norm(np.full(3, 1e30, np.float32)) == pytest.approx(3e60)
    assert not np.isfinite(square_norm(np.array([1.0, np.nan], np.float32)))


def test_the_first_of_several_pieces_may_be_the_place_of_the_sum():
    rows = lanes_of(3, 6)
    expected = (rows[0] + rows[1]) + rows[2]

    fold_pieces(DType.F32, [range(1), range(1, 2), range(2, 3)], list(rows), rows[0])

    np.testing.assert_array_equal(rows[0], expected)
