"""Each block of the sum of all lanes is on its owner, with the bits that fold_lanes gives everybody."""

import struct
from zlib import crc32

import numpy as np
import pytest
from group_lanes import LENGTH, blocks_of, contribute, lane_values, ownerships, tree_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import DType, round_to_bf16, square_norm
from phalanx.collectives import Finish
from phalanx.errors import ConfigError
from phalanx.group.arguments import checksum_blocks
from phalanx.testing import World

CUTS = blocks_of(LENGTH, 64)
OWNERS = [number * number % 3 for number in range(len(CUTS))]  # rank 2 owns none


def owned_by(rank, cuts=CUTS, owners=OWNERS):
    return [cut for cut, owner in zip(cuts, owners, strict=True) if owner == rank]


@pytest.mark.slow
@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@settings(deadline=None, max_examples=40)
@given(
    ownership=ownerships(),
    more_lanes=st.integers(0, 5),
    is_in_place=st.booleans(),
    wire=st.sampled_from([None, "bf16"]),
)
def test_owners_get_the_bits_of_fold_lanes_and_nothing_else_is_written(over, ownership, more_lanes, is_in_place, wire):
    size, length, cuts, owners = ownership
    lanes = size + more_lanes

    def work(group):
        rows, folded = contribute(group, lanes, length)
        group.fold_lanes(rows, folded, lanes=lanes, blocks=cuts, wire=wire)
        out = rows[0] if is_in_place else np.full(length, 7, np.float32)
        expected, expected_rows = out.copy(), rows.copy()
        for cut in owned_by(group.rank, cuts, owners):
            expected[cut] = folded[cut]
        if is_in_place:
            expected_rows[0] = expected

        result = group.scatter_lanes(rows, out, lanes=lanes, blocks=cuts, owners=owners, wire=wire)

        assert result is out
        return out.tobytes() == expected.tobytes(), rows.tobytes() == expected_rows.tobytes()

    assert World(size, over).run(work) == [(True, True)] * size


def test_ranks_on_several_hosts_get_the_same_bits():
    def work(group):
        rows, _ = contribute(group, 8)
        out = group.scatter_lanes(rows, np.zeros(LENGTH, np.float32), lanes=8, blocks=CUTS, owners=OWNERS)
        return [out[cut].tobytes() for cut in owned_by(group.rank)]

    results = World(4, "arena", hosts=["a", "a", "b", "b"]).run(work)

    whole = tree_sum(8)
    assert results == [[whole[cut].tobytes() for cut in owned_by(rank)] for rank in range(4)]


@pytest.mark.parametrize("over", ["memory", "arena"])
@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.BF16])
def test_every_type_adds_up_in_place_as_it_does_elsewhere(over, dtype):
    def work(group):
        rows = group.allocate((1, LENGTH), dtype.label)
        if dtype is DType.BF16:
            round_to_bf16(lane_values(group.rank), rows[0])
        else:
            rows[0] = lane_values(group.rank)
        folded = group.allocate(LENGTH, dtype.label, shared=True)
        group.fold_lanes(rows, folded, lanes=3, blocks=CUTS)
        group.scatter_lanes(rows, rows[0], lanes=3, blocks=CUTS, owners=OWNERS)
        return all(rows[0, cut].tobytes() == folded[cut].tobytes() for cut in owned_by(group.rank))

    assert World(3, over).run(work) == [True] * 3


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_an_owner_divides_and_measures_its_blocks(over):
    def work(group):
        rows, _ = contribute(group, 4)
        finish = Finish(np.array([1.0, 1.0]), np.full(len(CUTS), -1.0))
        group.scatter_lanes(rows, rows[0], lanes=4, blocks=CUTS, owners=OWNERS, finish=finish)
        return finish.squares.tolist(), [rows[0, cut].tobytes() for cut in owned_by(group.rank)]

    results = World(3, over).run(work)

    halved = tree_sum(4) / 2
    for rank, (squares, blocks_of_rank) in enumerate(results):
        assert blocks_of_rank == [halved[cut].tobytes() for cut in owned_by(rank)]
        assert squares == [
            square_norm(halved[cut]) if owner == rank else -1.0 for cut, owner in zip(CUTS, OWNERS, strict=True)
        ]


@pytest.mark.parametrize("over", ["memory", "arena"])
@pytest.mark.parametrize("size", [1, 3])
def test_blocks_that_a_rank_adds_up_first_may_lie_elsewhere(over, size):
    owners = [owner % size for owner in OWNERS]

    def work(group):
        rows, out = group.allocate((1, LENGTH)), np.zeros(LENGTH, np.float32)
        rows[0] = lane_values(group.rank)
        own = {number: rows[0, CUTS[number]].copy() for number in group.blocks_added_first(len(CUTS), owners)}
        for number in own:
            rows[0, CUTS[number]] = np.nan
        group.scatter_lanes(rows, out, lanes=size, blocks=CUTS, owners=owners, own=own)
        return [out[CUTS[number]].tobytes() for number in group.blocks_added_here(len(CUTS), owners)]

    results = World(size, over).run(work)

    whole = tree_sum(size)
    assert results == [[whole[cut].tobytes() for cut in owned_by(rank, owners=owners)] for rank in range(size)]


@pytest.mark.parametrize("over", ["memory", "tcp"])
def test_half_the_bytes_of_a_fold_are_sent(over):
    cuts = blocks_of(900, 100)

    def work(group):
        rows, out = contribute(group, 3, 900)
        counts = [group.statistics().bytes_sent]
        group.fold_lanes(rows, out, lanes=3, blocks=cuts)
        counts.append(group.statistics().bytes_sent)
        group.scatter_lanes(rows, out, lanes=3, blocks=cuts, owners=[0, 1, 2] * 3)
        counts.append(group.statistics().bytes_sent)
        return np.diff(counts).tolist()

    for folded, scattered in World(3, over).run(work):
        assert folded == 2 * scattered > 0


def test_pieces_that_others_cannot_see_are_refused():
    def work(group):
        rows, out = contribute(group, 2)
        with pytest.raises(ConfigError, match=r"pieces come from group\.allocate\(\.\.\.\)$"):
            group.scatter_lanes(rows.copy(), out, lanes=2, blocks=CUTS, owners=[0] * len(CUTS))

    World(2, "arena").run(work)


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_nothing_is_scattered_by_everybody_together(over):
    def work(group):
        rows, out = group.allocate((1, 0)), np.zeros(0, np.float32)
        return group.scatter_lanes(rows, out, lanes=3, blocks=[], owners=[]).size

    assert World(3, over).run(work) == [0] * 3


def test_the_checksum_of_blocks_is_the_one_that_is_written_down():
    words = struct.pack("<7Q", 8, 0, 3, 1, 5, 9, 0)

    assert checksum_blocks([slice(0, 3), slice(5, 9)], [1, 0], lanes=8) == crc32(words) & 0xFFFF
