"""Lanes that every rank can make for every other, their sum, and blocks with owners."""

import itertools

import numpy as np
from hypothesis import strategies as st

from phalanx.buffers import DType, ReduceOp, even_part, fold, pieces, slices

LENGTH = 1000


def blocks_of(length, most):
    """Blocks of ``most`` elements that cover ``length``; the last may be shorter."""
    return tuple(slices(slice(0, length), most))


def lane_values(lane, length=LENGTH):
    values = np.random.default_rng(lane).normal(size=length) * 10.0 ** (lane % 5)
    values[::7] = -0.0
    return values.astype(np.float32)


def tree_sum(lanes, length=LENGTH):
    out = np.empty(length, np.float32)
    fold(ReduceOp.SUM, DType.F32, [lane_values(lane, length) for lane in range(lanes)], out)
    return out


def contribute(group, lanes, length=LENGTH, dtype="f32"):
    own = even_part(lanes, group.size, group.rank)
    spans = pieces(own.start, own.stop, lanes)
    rows = group.allocate((len(spans), length), dtype)
    for row, span in zip(rows, spans, strict=True):
        fold(ReduceOp.SUM, DType.F32, [lane_values(lane, length) for lane in span], row)
    return rows, group.allocate(length, dtype, shared=True)


@st.composite
def ownerships(draw):
    """A number of ranks, a length, blocks that need not cover it, and an owner for each of them."""
    size, length = draw(st.integers(1, 5)), draw(st.integers(1, 60))
    edges = sorted(draw(st.sets(st.integers(0, length), min_size=2, max_size=12)))
    cuts = [slice(start, stop) for start, stop in itertools.pairwise(edges) if draw(st.integers(0, 4))]
    owners = draw(st.lists(st.integers(0, size - 1), min_size=len(cuts), max_size=len(cuts)))
    return size, length, cuts, owners
