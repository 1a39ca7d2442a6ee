"""Every rank ends with each block as its owner had it."""

import numpy as np
import pytest
from group_lanes import blocks_of, ownerships
from group_reference import data
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import DType
from phalanx.errors import ConfigError
from phalanx.testing import World
from phalanx.wire import HEADER_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@settings(deadline=None, max_examples=40)
@given(ownership=ownerships(), dtype=st.sampled_from(DType))
def test_blocks_come_from_their_owners_and_the_rest_is_left_alone(over, ownership, dtype):
    size, length, cuts, owners = ownership

    def work(group):
        array = group.allocate(length, dtype.label)
        array[:] = data(dtype, length, group.rank)
        result = group.broadcast_blocks(array, blocks=cuts, owners=owners)
        assert result is array
        return array.tobytes()

    results = World(size, over).run(work)

    for rank, result in enumerate(results):
        expected = data(dtype, length, rank)
        for cut, owner in zip(cuts, owners, strict=True):
            expected[cut] = data(dtype, length, owner)[cut]
        assert result == expected.tobytes()


def test_ranks_on_several_hosts_get_all_blocks():
    cuts, owners = blocks_of(100, 7), [number * 5 % 4 for number in range(15)]

    def work(group):
        array = group.allocate((10, 10), np.int64)
        array[:] = group.rank
        return group.broadcast_blocks(array, blocks=cuts, owners=owners).tolist()

    results = World(4, "arena", hosts=["a", "a", "b", "b"]).run(work)

    assert results == [np.repeat(owners, 7)[:100].reshape(10, 10).tolist()] * 4


def test_owners_may_change_their_blocks_as_soon_as_the_call_is_over():
    cuts, owners = blocks_of(4096, 128), [number % 4 for number in range(32)]

    def work(group):
        array = group.allocate(4096, "i64")
        for turn in range(50):
            for cut in cuts[group.rank :: 4]:
                array[cut] = turn
            group.broadcast_blocks(array, blocks=cuts, owners=owners)
            assert set(array.tolist()) == {turn}

    World(4, "arena").run(work)


@pytest.mark.parametrize(
    "owners", [pytest.param([0, 0, 1, 2], id="as they lie"), pytest.param([0, 1, 0, 2], id="packed")]
)
def test_each_rank_sends_its_blocks_once_to_each_peer(owners):
    def work(group):
        before = group.statistics().bytes_sent
        group.broadcast_blocks(np.zeros(400, np.uint8), blocks=blocks_of(400, 100), owners=owners)
        return group.statistics().bytes_sent - before

    sent = World(3, "tcp").run(work)

    assert sent == [2 * (HEADER_BYTES + 100 * owners.count(rank)) for rank in range(3)]


def test_an_array_that_others_cannot_see_is_refused():
    def work(group):
        with pytest.raises(ConfigError, match="allocate"):
            group.broadcast_blocks(np.ones(4), blocks=[slice(0, 4)], owners=[0])

    World(2, "arena").run(work)


@pytest.mark.parametrize("over", ["memory", "arena"])
@pytest.mark.parametrize("length", [0, 3])
def test_ranks_without_blocks_have_nothing_to_do(over, length):
    def work(group):
        return group.broadcast_blocks(group.allocate(length), blocks=[], owners=[]).tolist()

    assert World(3, over).run(work) == [[0.0] * length] * 3


@pytest.mark.parametrize("call", ["scatter_lanes", "broadcast_blocks"])
def test_a_group_can_explain_how(call):
    words = [World(2, over).run(lambda group: str(group.explain(call, 1 << 20)))[0] for over in ("memory", "arena")]

    assert words[0].startswith("direct")
    assert words[1].startswith("shared")
