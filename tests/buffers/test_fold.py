import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import Carry, DType, ReduceOp, fold, fold_pieces, pieces
from phalanx.errors import ConfigError


def nested(leaves: list):
    """The canonical tree over the leaves as nested pairs, written down independently of the code."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return (nested(leaves[:half]), nested(leaves[half:]))


def subtrees(leaves: list[int]) -> set[range]:
    whole = {range(leaves[0], leaves[-1] + 1)}
    if len(leaves) == 1:
        return whole
    half = max(2**k for k in range(10) if 2**k < len(leaves))
    return whole | subtrees(leaves[:half]) | subtrees(leaves[half:])


@st.composite
def cuts(draw):
    """A number of leaves and a cut of them into consecutive ranges, some of them empty."""
    leaves = draw(st.integers(1, 40))
    edges = sorted(draw(st.lists(st.integers(0, leaves), max_size=9)))
    return leaves, [range(*pair) for pair in zip([0, *edges], [*edges, leaves], strict=True)]


def carried(owned: range, leaves: int, values: list, combine) -> tuple:
    carry = Carry(leaves, combine)
    for lane in owned:
        carry.add(range(lane, lane + 1), values[lane])
    return carry.pieces()


def test_seven_leaves_split_at_four():
    ((_, tree),) = carried(range(7), 7, list(range(7)), lambda left, right: (left, right))

    assert tree == (((0, 1), (2, 3)), ((4, 5), 6))


@pytest.mark.parametrize(
    ("start", "stop", "leaves", "expected"),
    [
        (0, 8, 8, (range(8),)),
        (0, 3, 8, (range(2), range(2, 3))),
        (3, 6, 8, (range(3, 4), range(4, 6))),
        (6, 8, 8, (range(6, 8),)),
        (4, 7, 7, (range(4, 7),)),
        (1, 7, 7, (range(1, 2), range(2, 4), range(4, 7))),
        (5, 5, 8, ()),
    ],
)
def test_a_range_of_lanes_becomes_these_pieces(start, stop, leaves, expected):
    assert pieces(start, stop, leaves) == expected


@settings(deadline=None)
@given(cuts())
def test_pieces_are_whole_subtrees_and_no_two_of_them_make_a_larger_one(cut):
    leaves, owners = cut
    whole = subtrees(list(range(leaves)))

    for owned in owners:
        spans = pieces(owned.start, owned.stop, leaves)

        assert [leaf for span in spans for leaf in span] == list(owned)
        assert whole.issuperset(spans)
        joined = {range(a.start, b.stop) for i, a in enumerate(spans) for b in spans[i + 1 :]}
        assert whole.isdisjoint(joined)


@settings(deadline=None)
@given(cuts())
def test_carried_lanes_end_as_the_pieces_of_their_range(cut):
    leaves, owners = cut

    for owned in owners:
        spans = [span for span, _ in carried(owned, leaves, list(range(leaves)), lambda left, right: (left, right))]

        assert tuple(spans) == pieces(owned.start, owned.stop, leaves)


@settings(deadline=None)
@given(cuts())
def test_a_carry_adds_up_each_piece_as_the_tree_does(cut):
    leaves, owners = cut

    every = [piece for owned in owners for piece in carried(owned, leaves, list(range(leaves)), lambda a, b: (a, b))]

    assert [value for _, value in every] == [nested(list(span)) for span, _ in every]


@settings(deadline=None)
@given(cut=cuts(), seed=st.integers(0, 2**32 - 1))
def test_any_cut_into_ranges_gives_the_bits_of_one_fold(cut, seed):
    leaves, owners = cut
    random = np.random.default_rng(seed)
    inputs = [(random.standard_normal(33) * 10.0 ** random.integers(-6, 6)).astype(np.float32) for _ in range(leaves)]
    every = [piece for owned in owners for piece in carried(owned, leaves, inputs, np.add)]
    whole, total = np.empty(33, np.float32), np.empty(33, np.float32)

    fold_pieces(DType.F32, [span for span, _ in every], [value for _, value in every], total)
    fold(ReduceOp.SUM, DType.F32, inputs, whole)

    assert total.tobytes() == whole.tobytes()


def test_a_carry_holds_no_more_sums_than_the_tree_has_levels():
    carry = Carry(40, lambda left, right: left + right)

    for lane in range(40):
        carry.add(range(lane, lane + 1), 1)

        assert len(carry.pieces()) == max(1, (lane + 1).bit_count() - (lane == 39))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 9), (5, 4)])
def test_leaves_outside_the_tree_are_refused(start, stop):
    with pytest.raises(ConfigError, match="8 leaves has no leaves"):
        pieces(start, stop, 8)


def test_lanes_with_a_gap_between_them_are_not_added():
    carry = Carry(8, lambda left, right: left + right)
    for lane in (0, 1, 3, 6, 7):
        carry.add(range(lane, lane + 1), 1)

    assert carry.pieces() == ((range(2), 2), (range(3, 4), 1), (range(6, 8), 2))


@pytest.mark.parametrize("lane", [2, 3])
def test_a_lane_out_of_order_is_refused(lane):
    carry = Carry(8, lambda left, right: left + right)
    carry.add(range(3, 4), 1)

    with pytest.raises(ConfigError, match=f"lane {lane} cannot follow lane 3"):
        carry.add(range(lane, lane + 1), 1)
