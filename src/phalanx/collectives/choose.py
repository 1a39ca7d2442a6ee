"""The choice of an algorithm for a collective, by a cost model that measures nothing.

The choice depends only on the arguments, so all ranks make the same choice without asking each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from phalanx.buffers import even_parts
from phalanx.collectives import direct, pair, ring, tree
from phalanx.collectives.plan import Plan, Round, Send, Then, length_of
from phalanx.collectives.topology import Topology, count_of
from phalanx.wire import Collective


class Algorithm(Enum):
    """How a collective is carried out."""

    ALONE = "alone"
    """A group of one has nothing to exchange."""
    SHARED = "shared"
    """In the arena of the one host."""
    LAYERED = "layered"
    """In the arena of each host, and over links between hosts."""
    PAIR = "pair"
    DIRECT = "direct"
    RING = "ring"
    TREE = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What moving and folding bytes costs, in seconds; the defaults describe TCP over loopback.

    Ranks must agree on these, or they choose differently.
    """

    latency_s: float = 20e-6
    """For a round, until the first byte arrives."""
    message_s: float = 5e-6
    """For each message that a rank sends or receives: work of the processor, which does not overlap."""
    wire_s_per_byte: float = 1 / 1.5e9
    """In one direction; the other costs nothing more."""
    fold_s_per_byte: float = 1 / 8e9
    free_flows: int = 32
    """Flows that one rank can have at once without slowing each other."""
    flow_penalty: float = 0.01
    """The fraction by which each further flow slows all of them."""
    arena_barrier_s: float = 5e-6
    arena_s_per_byte: float = 1 / 10e9


LOOPBACK = Costs()


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm to use, what it should cost, why, and what else was considered."""

    algorithm: Algorithm
    seconds: float
    reason: str
    candidates: tuple[tuple[Algorithm, float], ...]

    def __str__(self) -> str:
        lines = [f"{self.algorithm.value}, about {_duration(self.seconds)}", f"  because {self.reason}"]
        others = [
            f"{algorithm.value} {_duration(seconds)}"
            for algorithm, seconds in self.candidates
            if algorithm is not self.algorithm
        ]
        return "\n".join([*lines, f"  instead of {', '.join(others)}"] if others else lines)


@lru_cache
def choose(collective: Collective, nbytes: int, topology: Topology, costs: Costs = LOOPBACK) -> Choice:
    """Return the cheapest way to carry out ``collective``, where ``nbytes`` is the whole buffer's length.

    The whole buffer of a gather, scatter, all-gather or all-to-all is all ranks' parts together.
    """
    candidates = tuple(_candidates(collective, nbytes, topology, costs))
    algorithm, seconds = min(candidates, key=lambda candidate: candidate[1])  # the first of equals
    return Choice(algorithm, seconds, f"{_REASONS[algorithm]} ({_bytes(nbytes)}, {topology})", candidates)


def _candidates(
    collective: Collective, nbytes: int, topology: Topology, costs: Costs
) -> Iterator[tuple[Algorithm, float]]:
    if topology.size == 1:
        yield Algorithm.ALONE, 0.0
        return
    if collective is not Collective.SEND and topology.is_one_host:
        yield Algorithm.SHARED, _shared_s(nbytes, costs)
    elif collective in _LAYERED and not topology.is_flat:
        yield Algorithm.LAYERED, _layered_s(nbytes, topology, costs)
        if collective is not Collective.ALL_REDUCE:
            return
    neighbours = max(map(len, topology.hosts))
    for algorithm, plan in _plans(collective, nbytes, topology.size):
        yield algorithm, _price(plan, costs, neighbours)


def _plans(  # noqa: C901, PLR0912 - one case for each collective
    collective: Collective, nbytes: int, size: int
) -> Iterator[tuple[Algorithm, Plan]]:
    """Yield rank 0's plan for each algorithm over links, with bytes as elements.

    Rank 0 has the longest part and, as root of a tree, the most to do: the others wait for it.
    """
    parts = even_parts(nbytes, size)
    match collective:
        case Collective.ALL_REDUCE:
            if size == 2:
                yield Algorithm.PAIR, pair.all_reduce(0, nbytes)
            yield Algorithm.DIRECT, direct.all_reduce(0, parts)
            yield Algorithm.RING, ring.all_reduce(0, parts)
            yield Algorithm.TREE, tree.all_reduce(0, size, nbytes)
        case Collective.REDUCE_SCATTER:
            yield Algorithm.DIRECT, direct.reduce_scatter(0, parts)
            yield Algorithm.RING, ring.reduce_scatter(0, parts)
        case Collective.ALL_GATHER:
            yield Algorithm.DIRECT, direct.all_gather(0, parts)
            yield Algorithm.RING, ring.all_gather(0, parts)
        case Collective.REDUCE:
            yield Algorithm.DIRECT, direct.reduce(0, 0, parts)
            yield Algorithm.TREE, tree.reduce(0, size, 0, nbytes)
        case Collective.BROADCAST:
            yield Algorithm.TREE, tree.broadcast(0, size, 0, nbytes)
        case Collective.GATHER:
            yield Algorithm.DIRECT, direct.gather(0, 0, parts)
        case Collective.SCATTER:
            yield Algorithm.DIRECT, direct.scatter(0, 0, parts)
        case Collective.ALL_TO_ALL:
            yield Algorithm.DIRECT, direct.all_to_all(0, parts, parts)
        case Collective.BARRIER:
            yield Algorithm.DIRECT, direct.barrier(0, size)
            yield Algorithm.TREE, tree.barrier(0, size)
        case Collective.FOLD_LANES:  # of one piece a rank
            yield Algorithm.DIRECT, direct.all_reduce(0, parts)
        case Collective.SCATTER_LANES:  # likewise, and of blocks that are shared out evenly
            yield Algorithm.DIRECT, direct.reduce_scatter(0, parts)
        case Collective.BROADCAST_BLOCKS:
            yield Algorithm.DIRECT, direct.all_gather(0, parts)
        case Collective.SEND:
            yield Algorithm.DIRECT, Plan((Round(sends=(Send(1, slice(0, nbytes)),)),))


def _price(plan: Plan, costs: Costs, neighbours: int) -> float:
    """Return the seconds for ``plan`` if ``neighbours`` ranks share one wire."""
    return sum(_price_round(each, costs, neighbours) for each in plan.rounds)


def _price_round(each: Round, costs: Costs, neighbours: int) -> float:
    sent = sum(length_of(send.part) for send in each.sends)
    received = sum(length_of(receive.part) for receive in each.receives)
    folded = sum(length_of(receive.part) for receive in each.receives if receive.then is Then.FOLD)
    flows = max(len(each.sends), len(each.receives))
    crowding = 1 + costs.flow_penalty * max(0, flows - costs.free_flows)
    return (
        costs.latency_s
        + costs.message_s * (len(each.sends) + len(each.receives))
        + costs.wire_s_per_byte * max(sent, received) * neighbours * crowding
        + costs.fold_s_per_byte * folded
    )


def _shared_s(nbytes: int, costs: Costs) -> float:
    """Return the seconds in an arena: one barrier before contributions are read, one after results are written."""
    return 2 * costs.arena_barrier_s + costs.arena_s_per_byte * nbytes


def _layered_s(nbytes: int, topology: Topology, costs: Costs) -> float:
    """Return the seconds if ranks in the same position on their hosts exchange what their hosts have folded."""
    exchanging = max(map(len, topology.hosts))
    part = even_parts(nbytes, exchanging)[0]
    between = direct.all_reduce(0, even_parts(length_of(part), len(topology.hosts)))
    return _shared_s(nbytes, costs) + _price(between, costs, exchanging)


_LAYERED = (
    Collective.ALL_REDUCE,
    Collective.FOLD_LANES,
    Collective.SCATTER_LANES,
    Collective.BROADCAST_BLOCKS,
)

_REASONS = {
    Algorithm.ALONE: "a group of one has nothing to exchange",
    Algorithm.SHARED: "all ranks share memory, so nothing needs a link",
    Algorithm.LAYERED: "each host folds in shared memory first and sends its ranks' buffers as one",
    Algorithm.PAIR: "two ranks that send each other everything need one round, and there is little to fold twice",
    Algorithm.DIRECT: "every part goes straight to the rank that needs it, in the fewest rounds",
    Algorithm.RING: "so many flows at once would slow each other down, and a ring has two at each rank",
    Algorithm.TREE: "it needs the fewest messages at the busiest rank",
}


def _bytes(nbytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return count_of(nbytes, "byte")


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
