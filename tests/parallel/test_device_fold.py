"""What a GPU adds up, divides and measures has the bits of a CPU, and those do not depend on who measures what."""

import numpy as np
import pytest
import torch

from phalanx.buffers import DType, LaneShares, fold_pieces
from phalanx.parallel.reduction.device_fold import add_squares, add_up, divide, measure
from phalanx.parallel.reduction.layout import ParameterSpec, align, lay_out
from phalanx.parallel.reduction.memory import as_tensor
from phalanx.parallel.reduction.ownership import Ownership
from phalanx.parallel.reduction.spans import ROW, join_chunks, list_pieces, place_pieces, plan_measuring, rows_of

LENGTH = 1000


def make_pieces(lanes, size, dtype):
    """The lanes of every piece in order, and its values as the exchange has them."""
    random = np.random.default_rng(lanes * size)
    covered = [each.lanes for each in list_pieces(LaneShares.even(lanes, size))]
    wide = [torch.from_numpy(random.standard_normal(LENGTH)) for _ in covered]
    kinds = {DType.F32: torch.float32, DType.F64: torch.float64, DType.BF16: torch.bfloat16, DType.F16: torch.float16}
    return tuple(covered), [each.to(kinds[dtype]) for each in wide]


def as_numpy(tensor):
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16, DType.F16])
@pytest.mark.parametrize(("lanes", "size"), [(1, 1), (2, 2), (8, 3), (7, 4), (8, 8)])
def test_sums_have_the_bits_of_the_cpu_that_folds(dtype, lanes, size):
    covered, pieces = make_pieces(lanes, size, dtype)
    expected = np.empty(LENGTH, dtype.numpy)
    fold_pieces(dtype, covered, [as_numpy(each) for each in pieces], expected, divisor=3.0)

    out = torch.full((LENGTH,), torch.nan, dtype=pieces[0].dtype)
    total = add_up(covered, pieces, out)
    divide(total, 3.0)
    if total is not out:
        out.copy_(total)

    assert as_numpy(out).tobytes() == expected.tobytes()
    assert as_tensor(expected, out.dtype).isfinite().all()


def test_a_piece_that_lies_where_the_sum_goes_is_only_divided():
    piece = torch.arange(4.0)

    divide(add_up((range(8),), [piece], piece), 4.0)

    assert piece.tolist() == [0.0, 0.25, 0.5, 0.75]


def layout_of(*sizes, is_sharded=False):
    specs = [ParameterSpec(str(number), size, is_sharded=is_sharded) for number, size in enumerate(sizes)]
    return lay_out(specs, 4 * sum(sizes)).buckets[0]


def squares_of(bucket, mean, chosen):
    plan = plan_measuring(bucket, chosen)
    found = add_squares(measure(mean, plan).numpy(), plan.starts)
    return dict(zip(plan.chunks, map(float.hex, found.tolist()), strict=True))


def test_the_squares_of_a_chunk_do_not_depend_on_what_is_measured_with_it():
    bucket = layout_of(70, 200_000, 1, 5000, 65_537)
    mean = torch.zeros(align(bucket.length))
    for place in bucket.places:
        mean[place] = torch.randn(place.stop - place.start, generator=torch.Generator().manual_seed(place.start))
    everything = squares_of(bucket, mean, range(len(bucket.chunks)))

    for chosen in [{0}, {2, 3}, {1, 5}, {len(bucket.chunks) - 1}, {0, 4, 6}]:
        assert squares_of(bucket, mean, chosen) == {number: everything[number] for number in chosen}
    for number, chunk in enumerate(bucket.chunks):
        exact = float(mean[chunk].double().square().sum())
        assert float.fromhex(everything[number]) == pytest.approx(exact, rel=1e-6)


def test_who_adds_up_nothing_measures_nothing():
    assert plan_measuring(layout_of(10), set()) == ((), (), (), 0)


def test_neighbouring_chunks_are_added_up_together():
    bucket = layout_of(70, 200_000, 100)  # its chunks are those of the last parameter first

    assert join_chunks(bucket, range(len(bucket.chunks))) == [slice(0, bucket.length)]
    first, second, *_, last = bucket.chunks
    assert join_chunks(bucket, {0, 1, len(bucket.chunks) - 1}) == [slice(first.start, second.stop), last]
    assert join_chunks(bucket, set()) == []


@pytest.mark.parametrize("size", [2, 3])
def test_every_element_of_a_sharded_bucket_is_added_up_by_one_rank(size):
    specs = [ParameterSpec(str(number), length, is_sharded=True) for number, length in enumerate((70, 500_000, 65_539))]
    layout = lay_out(specs, 1 << 40, block=2**17)
    bucket = layout.buckets[0]
    ownership = Ownership(layout.blocks, tuple(number % size for number in range(len(layout.blocks))))
    owners = [ownership.owner_at(parameter, start) for parameter, start in bucket.origins]

    times = np.zeros(bucket.length, int)
    for rank in range(size):
        for span in join_chunks(bucket, {number for number, owner in enumerate(owners) if owner == rank}):
            times[span] += 1

    assert all((times[place] == 1).all() for place in bucket.places)
    assert times.max() == 1


@pytest.mark.parametrize(("lanes", "size"), [(8, 1), (8, 2), (8, 3), (7, 4)])
def test_pieces_lie_behind_each_other_and_their_rows_begin_where_squares_do(lanes, size):
    shares = LaneShares.even(lanes, size)
    buckets = [layout_of(10), layout_of(1000, 3), layout_of(64)]

    for rank in range(size):
        rows = rows_of(shares, rank)
        offsets, end = place_pieces(buckets, rows)
        ends = [start + rows * align(each.length) * 4 for start, each in zip(offsets, buckets, strict=True)]

        assert rows >= len(shares.pieces(rank))
        assert all(stop <= start for stop, start in zip(ends, [*offsets[1:], end], strict=True))
        assert all(start % (4 * ROW) == 0 for start in offsets)
    assert [each.lanes.start for each in list_pieces(shares)] == sorted(
        each.lanes.start for each in list_pieces(shares)
    )
