"""Plans do what their docstrings say: run by ``simulate`` for many sizes, and compared with numpy and ``fold``."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import DType, ReduceOp, even_parts, fold
from phalanx.collectives import direct, pair, ring, star, tree
from phalanx.collectives.plan import Plan, Round, Send, length_of
from phalanx.testing.simulate import simulate

SIZES = range(1, 10)
LENGTHS = (0, 1, 7, 13)

ALL_REDUCES = {
    "ring": lambda rank, size, length: ring.all_reduce(rank, even_parts(length, size)),
    "direct": lambda rank, size, length: direct.all_reduce(rank, even_parts(length, size)),
    "tree": tree.all_reduce,
    "star": lambda rank, size, length: star.all_reduce(rank, size, size - 1, length),
    "pair": lambda rank, _size, length: pair.all_reduce(rank, length),
}
EVERY_ALL_REDUCE = [(name, size) for name in ALL_REDUCES for size in SIZES if name != "pair" or size == 2]
CANONICAL_ALL_REDUCE = [(name, size) for name, size in EVERY_ALL_REDUCE if name != "ring"]
REDUCES = {
    "direct": lambda rank, size, root, length: direct.reduce(rank, root, even_parts(length, size)),
    "tree": tree.reduce,
    "star": star.reduce,
}


def numbers(size, length):
    """Floats of such different magnitude that another order of additions gives other bits."""
    generator = np.random.default_rng([size, length])
    scale = 10 ** generator.uniform(-4, 4, (size, length))
    return list((generator.standard_normal((size, length)) * scale).astype("f4"))


def integers(size, length):
    return list(np.random.default_rng([size, length]).integers(-99, 99, (size, length)))


def folded(buffers, op=ReduceOp.SUM, dtype=DType.F32):
    out = np.empty_like(buffers[0])
    fold(op, dtype, buffers, out)
    return out


@pytest.mark.parametrize(("name", "size"), EVERY_ALL_REDUCE)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PRODUCT])
def test_every_rank_ends_with_the_reduction_of_all(name, size, op):
    for length in LENGTHS:
        buffers = integers(size, length)
        expected = op.ufunc.reduce(buffers)

        simulate([ALL_REDUCES[name](rank, size, length) for rank in range(size)], buffers, op, DType.I64)

        np.testing.assert_array_equal(buffers, [expected] * size)


@pytest.mark.parametrize(("name", "size"), EVERY_ALL_REDUCE)
def test_every_rank_ends_with_the_same_bits_of_the_mean(name, size):
    for length in LENGTHS:
        buffers = numbers(size, length)
        expected = np.mean(np.asarray(buffers, "f8"), axis=0)
        tolerance = 1e-6 * np.abs(buffers).max(axis=0)

        simulate([ALL_REDUCES[name](rank, size, length) for rank in range(size)], buffers, ReduceOp.MEAN)

        assert len({buffer.tobytes() for buffer in buffers}) == 1
        assert (np.abs(buffers[0] - expected) <= tolerance).all()


@pytest.mark.parametrize(("name", "size"), CANONICAL_ALL_REDUCE)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
def test_all_but_the_ring_give_exactly_the_bits_of_fold(name, size, op):
    buffers = numbers(size, 13)
    expected = folded(buffers, op)

    simulate([ALL_REDUCES[name](rank, size, 13) for rank in range(size)], buffers, op)

    assert {buffer.tobytes() for buffer in buffers} == {expected.tobytes()}


@pytest.mark.parametrize(("name", "size"), [case for case in CANONICAL_ALL_REDUCE if case[0] != "tree"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
def test_who_folds_everything_at_once_rounds_narrow_floats_once(name, size, op):
    buffers = [buffer.astype("f2") for buffer in numbers(size, 13)]
    expected = folded(buffers, op, DType.F16)

    simulate([ALL_REDUCES[name](rank, size, 13) for rank in range(size)], buffers, op, DType.F16)

    assert {buffer.tobytes() for buffer in buffers} == {expected.tobytes()}


def test_a_ring_adds_in_an_order_of_its_own():
    buffers = numbers(9, 100)
    canonical = folded(buffers)

    simulate([ring.all_reduce(rank, even_parts(100, 9)) for rank in range(9)], buffers)

    assert buffers[0].tobytes() != canonical.tobytes()


@st.composite
def cuts(draw):
    """A length cut anywhere into parts, some of them empty."""
    length, size = draw(st.integers(0, 20)), draw(st.integers(1, 9))
    edges = sorted(draw(st.lists(st.integers(0, length), min_size=size - 1, max_size=size - 1)))
    return [slice(start, stop) for start, stop in pairwise([0, *edges, length])]


@given(parts=cuts(), module=st.sampled_from([ring, direct]))
@settings(deadline=None)
def test_any_cut_of_the_buffer_will_do(parts, module):
    size = len(parts)
    buffers = integers(size, parts[-1].stop)
    expected = np.sum(buffers, axis=0)

    simulate([module.all_reduce(rank, parts) for rank in range(size)], buffers, dtype=DType.I64)

    np.testing.assert_array_equal(buffers, [expected] * size)


@pytest.mark.parametrize("module", [ring, direct])
@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter_leaves_part_r_on_rank_r(module, size):
    for length in LENGTHS:
        parts = even_parts(length, size)
        buffers = integers(size, length)
        expected = np.sum(buffers, axis=0)

        simulate([module.reduce_scatter(rank, parts) for rank in range(size)], buffers, dtype=DType.I64)

        for part, buffer in zip(parts, buffers, strict=True):
            np.testing.assert_array_equal(buffer[part], expected[part])


@pytest.mark.parametrize("module", [ring, direct])
@pytest.mark.parametrize("size", SIZES)
def test_all_gather_copies_part_r_from_rank_r(module, size):
    for length in LENGTHS:
        parts = even_parts(length, size)
        buffers = integers(size, length)
        expected = np.concatenate([buffer[part] for part, buffer in zip(parts, buffers, strict=True)])

        simulate([module.all_gather(rank, parts) for rank in range(size)], buffers, dtype=DType.I64)

        np.testing.assert_array_equal(buffers, [expected] * size)


@pytest.mark.parametrize("name", REDUCES)
@pytest.mark.parametrize("size", SIZES)
def test_reduce_gives_the_root_the_bits_of_fold_whoever_is_root(name, size):
    for root, length in product(range(size), LENGTHS):
        buffers = numbers(size, length)
        expected = folded(buffers, ReduceOp.MEAN)

        simulate([REDUCES[name](rank, size, root, length) for rank in range(size)], buffers, ReduceOp.MEAN)

        assert buffers[root].tobytes() == expected.tobytes()


@pytest.mark.parametrize("module", [tree, star])
@pytest.mark.parametrize("size", SIZES)
def test_broadcast_copies_the_buffer_of_the_root(module, size):
    for root, length in product(range(size), LENGTHS):
        buffers = numbers(size, length)
        expected = buffers[root].copy()

        simulate([module.broadcast(rank, size, root, length) for rank in range(size)], buffers)

        np.testing.assert_array_equal(buffers, [expected] * size)


@pytest.mark.parametrize("module", [direct, star])
@pytest.mark.parametrize("size", SIZES)
def test_gather_puts_the_buffer_of_rank_r_into_part_r_of_the_root(module, size):
    for root, length in product(range(size), LENGTHS):
        parts = even_parts(length, size)
        whole = np.arange(1, length + 1)
        sources = [whole[part].copy() for part in parts]
        targets = [np.zeros_like(whole) for _ in parts]
        targets[root][parts[root]] = sources[root]

        simulate([module.gather(rank, root, parts) for rank in range(size)], sources, dtype=DType.I64, targets=targets)

        np.testing.assert_array_equal(targets[root], whole)


@pytest.mark.parametrize("module", [direct, star])
@pytest.mark.parametrize("size", SIZES)
def test_scatter_puts_part_r_of_the_root_into_the_buffer_of_rank_r(module, size):
    for root, length in product(range(size), LENGTHS):
        parts = even_parts(length, size)
        whole = np.arange(1, length + 1)
        sources = [whole if rank == root else np.zeros_like(whole) for rank in range(size)]
        targets = [np.zeros(length_of(part), whole.dtype) for part in parts]
        targets[root][:] = whole[parts[root]]

        simulate([module.scatter(rank, root, parts) for rank in range(size)], sources, dtype=DType.I64, targets=targets)

        np.testing.assert_array_equal(np.concatenate(targets), whole)


@given(data=st.data(), size=st.sampled_from(SIZES))
@settings(deadline=None)
def test_all_to_all_transposes_any_matrix_of_lengths(data, size):
    lengths = [data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)) for _ in range(size)]
    letters = [[np.full(lengths[giver][taker], 10 * giver + taker) for taker in range(size)] for giver in range(size)]
    columns = list(zip(*letters, strict=True))
    expected = [np.concatenate(column) for column in columns]
    targets = [np.where(column == 11 * rank, column, -1) for rank, column in enumerate(expected)]

    simulate(
        [direct.all_to_all(rank, end_to_end(letters[rank]), end_to_end(columns[rank])) for rank in range(size)],
        [np.concatenate(row) for row in letters],
        dtype=DType.I64,
        targets=targets,
    )

    for target, column in zip(targets, expected, strict=True):
        np.testing.assert_array_equal(target, column)


def end_to_end(arrays):
    """Where each array lies when they are laid end to end."""
    edges = np.cumsum([0, *map(len, arrays)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(edges)]


@pytest.mark.parametrize("module", [direct, tree])
@pytest.mark.parametrize("size", SIZES)
def test_nobody_passes_a_barrier_before_having_heard_of_everybody(module, size):
    plans = [module.barrier(rank, size) for rank in range(size)]
    heard = [{rank} for rank in range(size)]

    simulate(plans, numbers(size, 0))
    for rounds in zip(*(plan.rounds for plan in plans), strict=True):
        before = [set(each) for each in heard]
        for rank, mine in enumerate(rounds):
            heard[rank].update(*(before[receive.peer] for receive in mine.receives))

    assert heard == [set(range(size))] * size


def test_a_round_has_one_message_for_each_peer():
    with pytest.raises(AssertionError, match=r"one message for each peer, not \[1, 1\]"):
        Round(sends=(Send(1, slice(0, 1)), Send(1, slice(1, 2))))


def test_empty_messages_are_left_out():
    plan = ring.all_reduce(0, even_parts(0, 3))

    assert plan == Plan((Round(),) * 4)


def test_a_plan_explains_itself():
    plan = ring.reduce_scatter(1, even_parts(10, 3)) + Plan((Round(),))

    assert str(plan) == (
        "3 rounds, 7 elements sent, folding in 2 of them\n"
        "  round 0: send [0:4] to rank 2; fold [7:10] from rank 0\n"
        "  round 1: send [7:10] to rank 2; fold [4:7] from rank 0; then [4:7] is complete\n"
        "  round 2: nothing to do"
    )
