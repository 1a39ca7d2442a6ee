"""Who adds up what, who stands for whom, and what a host contributes: all ranks come to the same from the topology."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.buffers import DType, LaneShares, ReduceOp, cover, fold, fold_pieces
from phalanx.collectives.topology import Topology, owners_of, pieces_by_host, share_out, stand_ins


@st.composite
def topologies(draw):
    names = draw(st.lists(st.integers(0, 4), min_size=1, max_size=9))
    hosts = {}
    for rank, name in enumerate(names):
        hosts.setdefault(name, []).append(rank)
    return Topology(tuple(map(tuple, hosts.values())))


@given(st.integers(1, 40), st.data())
def test_a_cover_has_whole_subtrees_and_nothing_else(leaves, data):
    wanted = data.draw(st.sets(st.integers(0, leaves - 1)))

    found = cover(wanted, leaves)

    assert [leaf for span in found for leaf in span] == sorted(wanted)
    assert all(cover(set(span), leaves) == (span,) for span in found)


@given(topologies(), st.integers(0, 100))
def test_everything_is_shared_out_once_and_evenly(topology, length):
    parts = share_out(length, topology)

    assert sorted(item for part in parts for item in range(length)[part]) == list(range(length))
    by_host = [sum(parts[rank].stop - parts[rank].start for rank in host) for host in topology.hosts]
    assert max(by_host) - min(by_host) <= 1
    for host in topology.hosts:
        lengths = [parts[rank].stop - parts[rank].start for rank in host]
        assert max(lengths) - min(lengths) <= 1
    assert all(item in range(length)[parts[owner]] for item, owner in enumerate(owners_of(length, topology)))


@given(topologies())
def test_one_rank_of_each_host_stands_for_a_rank_and_on_its_own_host_itself(topology):
    table = stand_ins(topology)

    for host, standing in zip(topology.hosts, table, strict=True):
        assert set(standing) <= set(host)
        assert all(standing[rank] == rank for rank in host)


@given(topologies(), st.integers(0, 8), st.data())
def test_what_hosts_contribute_adds_up_to_the_bits_of_the_tree(topology, more, data):
    lanes = topology.size + more
    kept = [cover(data.draw(st.sets(st.integers(0, lanes - 1))), lanes) for _ in range(topology.size)]
    shares = LaneShares.keeping(lanes, kept)
    values = (np.random.default_rng(lanes).normal(size=(lanes, 5)) * 10.0 ** np.arange(lanes)[:, None] % 1e7).astype(
        "f4"
    )

    def add_up(span):
        out = np.empty(5, np.float32)
        fold(ReduceOp.SUM, DType.F32, list(values[span.start : span.stop]), out)
        return out

    pieces = sorted(
        (each for host in pieces_by_host(shares, topology) for each in host), key=lambda each: each.lanes.start
    )
    inputs = []
    for piece in pieces:
        first = piece.lanes.start
        covered = [range(each.lanes.start - first, each.lanes.stop - first) for each in piece.pieces]
        inputs.append(np.empty(5, np.float32))
        fold_pieces(DType.F32, covered, [add_up(each.lanes) for each in piece.pieces], inputs[-1])
    out = np.empty(5, np.float32)
    fold_pieces(DType.F32, [piece.lanes for piece in pieces], inputs, out)

    assert out.tobytes() == add_up(range(lanes)).tobytes()
