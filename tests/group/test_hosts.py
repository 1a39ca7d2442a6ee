"""Hosts with several ranks add up in their arenas first: the same bits everywhere, and no more bytes between hosts."""

import numpy as np
import pytest
from group_counters import Counters
from group_lanes import blocks_of, contribute, lane_values, tree_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import square_norm
from phalanx.collectives import Finish
from phalanx.errors import ConfigError, PeerLost
from phalanx.testing import World
from phalanx.wire import HEADER_BYTES

LENGTH = 501
CUTS = blocks_of(LENGTH, 16)

TOPOLOGIES = [
    ["a", "a", "b", "b"],
    ["a", "b", "a", "b"],  # ranks of a host that are not consecutive
    ["a", "b", "b", "c", "b"],  # hosts of unequal size
    ["a", "b", "c"],
    ["a", "a", "a", "b"],
]
each_topology = pytest.mark.parametrize("hosts", TOPOLOGIES, ids="".join)


def world(hosts, **options):
    return World(len(hosts), "arena", hosts=hosts, **options)


@each_topology
@pytest.mark.parametrize("lanes", [5, 8, 11])
def test_every_topology_gets_the_bits_of_the_tree(hosts, lanes):
    owners = [number * 3 % len(hosts) for number in range(len(CUTS))]

    def work(group):
        rows, out = contribute(group, lanes, LENGTH)
        folded = group.fold_lanes(rows, out, lanes=lanes, blocks=CUTS).tobytes()
        finish = Finish(np.array([4.0]), np.zeros(len(CUTS)))
        scattered = np.zeros(LENGTH, np.float32)
        group.scatter_lanes(rows, scattered, lanes=lanes, blocks=CUTS, owners=owners, finish=finish)
        own = group.blocks_added_here(len(CUTS), owners)
        return folded, [(scattered[CUTS[number]].tobytes(), finish.squares[number]) for number in own]

    results = world(hosts).run(work)

    whole = tree_sum(lanes, LENGTH)
    quarter = whole / 4
    assert {folded for folded, _ in results} == {whole.tobytes()}
    for rank, (_, scattered) in enumerate(results):
        cuts = [cut for cut, owner in zip(CUTS, owners, strict=True) if owner == rank]
        assert scattered == [(quarter[cut].tobytes(), square_norm(quarter[cut])) for cut in cuts]


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_topology_owners_and_blocks_give_the_same_bits(data):
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=2, max_size=5), "hosts")
    lanes = len(hosts) + data.draw(st.integers(0, 6), "more lanes")
    length = data.draw(st.integers(1, 90), "length")
    cuts = blocks_of(length, data.draw(st.integers(1, 40), "block"))
    owners = data.draw(st.lists(st.integers(0, len(hosts) - 1), min_size=len(cuts), max_size=len(cuts)), "owners")

    def work(group):
        rows, out = contribute(group, lanes, length)
        folded = group.fold_lanes(rows, out, lanes=lanes, blocks=cuts).tobytes()
        group.scatter_lanes(rows, rows[0], lanes=lanes, blocks=cuts, owners=owners)
        group.broadcast_blocks(rows[0], blocks=cuts, owners=owners)
        return folded, rows[0].tobytes()

    assert set(world(hosts).run(work)) == {(tree_sum(lanes, length).tobytes(),) * 2}


@each_topology
@pytest.mark.parametrize("dtype", ["f64", "f16"])
def test_narrow_pieces_are_rounded_once_whatever_the_topology(hosts, dtype):
    def work(group):
        rows, out = contribute(group, len(hosts), LENGTH, dtype)
        rows[0] = lane_values(group.rank, LENGTH) / 1000
        return group.fold_lanes(rows, out, lanes=len(hosts), blocks=CUTS, finish=Finish(np.array([3.0]))).tobytes()

    apart, together = World(len(hosts), "memory").run(work), world(hosts).run(work)

    assert set(together) == set(apart)


def test_a_narrow_wire_rounds_what_hosts_send_and_not_what_ranks_do():
    def work(group):
        rows, out = contribute(group, 8, LENGTH)
        folded = group.fold_lanes(rows, out, lanes=8, blocks=CUTS, wire="bf16").tobytes()
        reduced = group.all_reduce(lane_values(0, LENGTH), wire="bf16")
        return folded, reduced.tobytes()

    several, single = world(["a", "a", "b", "b"]).run(work), world(["a", "b"]).run(work)

    assert {folded for folded, _ in several} == {folded for folded, _ in single}
    assert len({reduced for _, reduced in several}) == 1
    reduced = np.frombuffer(several[0][1], np.float32)
    np.testing.assert_allclose(reduced, 4 * lane_values(0, LENGTH), rtol=2**-6, atol=1)


@each_topology
def test_blocks_that_a_rank_adds_up_first_may_lie_elsewhere(hosts):
    size = len(hosts)
    owners = [number * 2 % size for number in range(len(CUTS))]

    def work(group):
        rows, out = group.allocate((1, LENGTH)), group.allocate(LENGTH, shared=True)
        values = lane_values(group.rank, LENGTH)
        folded = []
        for owned_by in (None, owners):
            rows[0] = values
            own = {number: values[CUTS[number]].copy() for number in group.blocks_added_first(len(CUTS), owned_by)}
            for number in own:
                rows[0, CUTS[number]] = np.nan
            if owned_by is None:
                folded.append(group.fold_lanes(rows, out, lanes=size, blocks=CUTS, own=own).tobytes())
            else:
                group.scatter_lanes(rows, rows[0], lanes=size, blocks=CUTS, owners=owned_by, own=own)
                group.broadcast_blocks(rows[0], blocks=CUTS, owners=owned_by)
                folded.append(rows[0].tobytes())
        return tuple(folded)

    assert set(world(hosts).run(work)) == {(tree_sum(size, LENGTH).tobytes(),) * 2}


@each_topology
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_an_all_reduce_may_begin_and_end_anywhere(hosts, op, monkeypatch):
    monkeypatch.setattr("phalanx.collectives.layered._SECTION_BYTES", 1000)  # so that it takes several

    def work(group):
        values = np.arange(LENGTH) % 17 * (group.rank + 1.0)
        inside, shared = group.allocate(LENGTH, "f64"), group.allocate(LENGTH, "f64", shared=True)
        inside[:] = values
        source = inside if group.rank % 2 else values
        results = [group.all_reduce(source, op, out=shared).copy()]
        group.barrier()
        results.append(group.all_reduce(source, op, out=np.empty(LENGTH)))
        results.append(group.all_reduce(source, op, out=shared if group.rank == 0 else np.empty(LENGTH)).copy())
        results.append(group.all_reduce(source, op))
        return [each.tolist() for each in results]

    every = [np.arange(LENGTH) % 17 * (rank + 1.0) for rank in range(len(hosts))]
    expected = {"sum": np.sum, "mean": np.mean, "max": np.max}[op](every, axis=0)

    for results in world(hosts).run(work):
        for each in results:
            np.testing.assert_allclose(each, expected, rtol=1e-15)


@each_topology
def test_calls_without_elements_are_barriers(hosts):
    def work(group):
        nothing, shared = group.allocate((1, 0)), group.allocate(0, shared=True)
        group.fold_lanes(nothing, shared, lanes=len(hosts))
        group.scatter_lanes(nothing, nothing[0], lanes=len(hosts), blocks=[], owners=[])
        group.broadcast_blocks(nothing[0], blocks=[], owners=[])
        group.all_reduce(nothing)
        group.fold_lanes(group.allocate((1, 5)), group.allocate(5, shared=True), lanes=len(hosts), blocks=[])
        return group.all_reduce(np.ones(1)).tolist()

    assert world(hosts).run(work) == [[len(hosts)]] * len(hosts)


def count_bytes(hosts, lanes, length):
    """Return the bytes that all ranks together send in each of some calls."""
    cuts = blocks_of(length, 64)

    def work(group):
        owners = [
            group.hosts[number % len(group.hosts)][number % 7 % len(group.hosts[0])] for number in range(len(cuts))
        ]
        rows, out = contribute(group, lanes, length)
        array = group.allocate(length)
        calls = [
            lambda: group.fold_lanes(rows, out, lanes=lanes, blocks=cuts),
            lambda: group.scatter_lanes(rows, rows[0], lanes=lanes, blocks=cuts, owners=owners),
            lambda: group.broadcast_blocks(array, blocks=cuts, owners=owners),
            lambda: group.all_reduce(array),
            lambda: group.fold_lanes(rows, out, lanes=lanes, blocks=cuts, wire="bf16"),
        ]
        sent = [group.statistics().bytes_sent]
        for call in calls:
            call()
            sent.append(group.statistics().bytes_sent)
        return np.diff(sent).tolist()

    return np.sum(world(hosts).run(work), axis=0)


def test_hosts_send_what_as_many_single_ranks_would_send():
    length = 64 * 64
    alone, several = count_bytes(["a", "b", "c"], 12, length), count_bytes([*"aabbcc"], 12, length)

    headers = HEADER_BYTES * 2 * 6 * 2  # at most two messages to each of two peers
    assert (np.abs(several - alone) <= headers).all()
    assert several.max() <= 2 * 2 * 4 * length + headers  # three hosts, each two thirds of the buffer, out and back


def test_a_small_all_reduce_takes_one_message_to_every_other_host():
    def work(group):
        array, before = np.arange(8.0) + group.rank, group.statistics().bytes_sent
        group.all_reduce(array)
        return array.tolist(), group.statistics().bytes_sent - before

    assert world(["a", "b", "c"]).run(work) == [((3 * np.arange(8.0) + 3).tolist(), 2 * (HEADER_BYTES + 64))] * 3


def test_an_out_that_the_ranks_of_a_host_do_not_share_is_refused():
    def work(group):
        rows, _ = contribute(group, 4, LENGTH)
        with pytest.raises(ConfigError, match="shared=True"):
            group.fold_lanes(rows, np.zeros(LENGTH, np.float32), lanes=4)

    world(["a", "a", "b", "b"]).run(work)


@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_that_dies_in_a_stream_is_named(victim):
    counters = Counters(4)

    def work(group):
        rows, out = contribute(group, 4, 1 << 20)
        try:
            while True:
                group.fold_lanes(rows, out, lanes=4)
                counters.values[group.rank] += 1
        except PeerLost as error:
            return error.peer

    run = world(["a", "a", "b", "b"], processes=True).start(work)
    counters.wait_until_all_reach(2)
    run.kill(victim)

    assert [outcome.result for outcome in run.outcomes()] == [victim] * 3
