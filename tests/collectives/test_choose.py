"""The choice of an algorithm: a function of its arguments, with reasons."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.collectives.choose import Algorithm, Costs, Topology, choose
from phalanx.errors import ConfigError
from phalanx.wire import Collective

KIB, MIB = 2**10, 2**20
PLANNED = [each for each in Collective if each is not Collective.ALLOCATE]  # memory is not moved


def flat(size):
    return Topology(tuple((rank,) for rank in range(size)))


def one_host(size):
    return Topology((tuple(range(size)),))


@st.composite
def topologies(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    ranks = iter(draw(st.permutations(range(sum(sizes)))))
    return Topology(tuple(tuple(next(ranks) for _ in range(size)) for size in sizes))


@pytest.mark.parametrize(
    ("size", "nbytes", "expected"),
    [
        (2, 4, Algorithm.PAIR),
        (2, 64 * KIB, Algorithm.PAIR),
        (2, 4 * MIB, Algorithm.DIRECT),
        (3, 4, Algorithm.DIRECT),
        (8, 25 * MIB, Algorithm.DIRECT),
        (16, KIB, Algorithm.TREE),
        (32, 1024 * MIB, Algorithm.DIRECT),
        (64, KIB, Algorithm.TREE),
        (64, MIB, Algorithm.DIRECT),
        (64, 128 * MIB, Algorithm.RING),
    ],
)
def test_ranks_that_share_no_memory_reduce_by_size_and_number(size, nbytes, expected):
    assert choose(Collective.ALL_REDUCE, nbytes, flat(size)).algorithm is expected


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        (Collective.BROADCAST, Algorithm.TREE),
        (Collective.GATHER, Algorithm.DIRECT),
        (Collective.SCATTER, Algorithm.DIRECT),
        (Collective.ALL_TO_ALL, Algorithm.DIRECT),
        (Collective.SEND, Algorithm.DIRECT),
        (Collective.REDUCE_SCATTER, Algorithm.RING),
        (Collective.ALL_GATHER, Algorithm.RING),
        (Collective.REDUCE, Algorithm.DIRECT),
        (Collective.BARRIER, Algorithm.TREE),
    ],
)
def test_much_among_many_ranks_goes_where_the_collective_allows(collective, expected):
    nbytes = 0 if collective is Collective.BARRIER else 128 * MIB

    assert choose(collective, nbytes, flat(64)).algorithm is expected


@given(
    size=st.integers(2, 70),
    nbytes=st.integers(0, 2**32),
    collective=st.sampled_from([each for each in PLANNED if each not in {Collective.SEND, Collective.BARRIER}]),
)
@settings(deadline=None)
def test_ranks_of_one_host_use_its_memory(size, nbytes, collective):
    assert choose(collective, nbytes, one_host(size)).algorithm is Algorithm.SHARED


def test_a_barrier_of_one_host_is_in_its_memory_but_a_send_is_not():
    assert choose(Collective.BARRIER, 0, one_host(4)).algorithm is Algorithm.SHARED
    assert choose(Collective.SEND, MIB, one_host(4)).algorithm is Algorithm.DIRECT


@pytest.mark.parametrize("nbytes", [4, MIB, 128 * MIB])
def test_hosts_of_several_ranks_fold_in_memory_first(nbytes):
    topology = Topology(((0, 1), (2, 3)))

    assert choose(Collective.ALL_REDUCE, nbytes, topology).algorithm is Algorithm.LAYERED
    assert choose(Collective.REDUCE_SCATTER, nbytes, topology).algorithm is Algorithm.DIRECT


def test_ranks_of_one_host_share_its_wire():
    crowded, spread = Topology(((0, 1), (2, 3))), flat(4)

    seconds = [choose(Collective.ALL_GATHER, MIB, topology).seconds for topology in (crowded, spread)]

    assert seconds[0] > seconds[1]


@given(collective=st.sampled_from(PLANNED), nbytes=st.integers(0, 2**32), topology=topologies())
@settings(deadline=None)
def test_the_choice_is_the_cheapest_candidate(collective, nbytes, topology):
    choice = choose(collective, nbytes, topology)

    assert (choice.algorithm, choice.seconds) in choice.candidates
    assert choice.seconds == min(seconds for _, seconds in choice.candidates)
    assert (Algorithm.ALONE in dict(choice.candidates)) == (topology.size == 1)
    assert choice == choose.__wrapped__(collective, nbytes, topology)


@given(collective=st.sampled_from(PLANNED), nbytes=st.integers(0, 2**32), size=st.integers(2, 40))
@settings(deadline=None)
def test_more_bytes_never_cost_less(collective, nbytes, size):
    less, more = (choose(collective, each, flat(size)).seconds for each in (nbytes, 2 * nbytes))

    assert less <= more


def test_costs_decide():
    slow_fold = Costs(fold_s_per_byte=1e-6)
    fast_wire = Costs(wire_s_per_byte=0.0)

    assert choose(Collective.ALL_REDUCE, 64 * KIB, flat(2), slow_fold).algorithm is Algorithm.DIRECT
    assert choose(Collective.ALL_REDUCE, 128 * MIB, flat(64), fast_wire).algorithm is not Algorithm.RING


def test_a_choice_explains_itself():
    choice = choose(Collective.ALL_REDUCE, 4 * MIB, flat(8))

    assert str(choice) == (
        "direct, about 5.53 ms\n"
        "  because every part goes straight to the rank that needs it, in the fewest rounds"
        " (4 MiB, 8 ranks on 8 hosts)\n"
        "  instead of ring 5.77 ms, tree 18.5 ms"
    )


def test_a_group_of_one_has_nothing_to_explain():
    choice = choose(Collective.ALL_REDUCE, 1, flat(1))

    assert (
        str(choice) == "alone, about 0 µs\n  because a group of one has nothing to exchange (1 byte, 1 rank on 1 host)"
    )


def test_a_topology_knows_who_shares_memory():
    topology = Topology(((0, 3), (1,), (2,)))

    assert topology.size == 4
    assert topology.host_of(3) == (0, 3)
    assert not topology.is_flat
    assert not topology.is_one_host
    assert flat(3).is_flat
    assert one_host(3).is_one_host


@pytest.mark.parametrize("hosts", [(), ((),), ((0,), ()), ((1,),), ((0, 1), (1,)), ((0,), (2,))])
def test_hosts_share_out_all_ranks(hosts):
    with pytest.raises(ConfigError, match="each rank once"):
        Topology(hosts)
