"""Making a team: its links, each of which is connected when it is first needed, and the arena of each host."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from phalanx.buffers import Array
from phalanx.collectives import LinkRunner, TaggedMessages, Team, Topology, tell_all
from phalanx.transport import (
    Arena,
    ArenaSegments,
    Connector,
    Deadline,
    Epoch,
    LazyLink,
    Link,
    Place,
    are_together,
    machine_of,
    usable_cpus,
    why_apart,
    why_not_share_memory,
)

_log = logging.getLogger("phalanx")


def assemble(
    rank: int,
    names: Sequence[int],
    hosts: Sequence[str],
    connector: Connector,
    key: bytes,
    deadline: Deadline,
    epoch: Epoch,
    *,
    is_world: bool,
) -> Team:
    """Return the team of a group, for its rank ``rank``.

    ``names`` has the rank that each member has in the world, and ``hosts`` the host that it runs on. The team of the
    world logs why ranks of one machine share no memory. Subgroups do not log it again.
    """
    own = names[rank]

    def links(make: Callable[[int, Deadline], Link]) -> dict[int, LazyLink]:
        return {number: LazyLink(name, partial(make, name)) for number, name in enumerate(names) if number != rank}

    def make_link(peer: int, deadline: Deadline) -> Link:
        """Connect two ranks: the higher one dials. Both need the link in the same round of the same call."""
        make = connector.dial if own > peer else connector.accept
        return make(key, own, peer, deadline, epoch)

    collective = links(make_link)
    neighbours = sum(machine_of(host) == machine_of(hosts[rank]) for host in hosts)
    cpus = usable_cpus() // neighbours
    with ExitStack() as undo:
        for link in collective.values():
            undo.callback(link.close)
        arena, topology, fewest_cpus = _share_memory(
            LinkRunner(rank, collective, epoch, own), names, hosts, deadline, cpus, is_world=is_world
        )
        if not topology.is_one_host:
            undo.pop_all()
    if topology.is_one_host:
        collective = links(make_link)  # the links above were only needed to set up the arena

    def one_way(key: bytes) -> tuple[dict[int, LazyLink], dict[int, LazyLink]]:
        """Return links to and from each peer. The sender dials, so that it need not wait until its peer receives."""
        return (
            links(lambda peer, deadline: connector.dial(key, own, peer, deadline, epoch)),
            links(lambda peer, deadline: connector.accept(key, own, peer, deadline, epoch)),
        )

    outbound, inbound = one_way(hashlib.sha256(key).digest()[:16])
    tagged = TaggedMessages(rank, own, *one_way(hashlib.sha256(key + b"tagged").digest()[:16]), epoch)
    return Team(
        rank,
        names,
        topology,
        collective,
        outbound,
        inbound,
        arena,
        epoch,
        tagged,
        has_two_cpus=cpus >= 2,
        is_crowded=are_together(hosts) and fewest_cpus < 2,
    )


def _share_memory(
    runner: LinkRunner, names: Sequence[int], hosts: Sequence[str], deadline: Deadline, cpus: int, *, is_world: bool
) -> tuple[Arena | None, Topology, int]:
    """Make an arena if all ranks of this host can map each other's memory.

    Return it, or None, the topology, and the fewest CPUs that a rank has; this one has ``cpus``.
    """
    rank, size = runner.rank, len(names)
    apart = Topology(tuple((number,) for number in range(size)))
    if is_world:
        _log_strangers(rank, hosts)
    if size == 1:
        return None, apart, cpus
    if len(set(hosts)) == size:
        return None, apart, int(tell_all(runner, np.array([cpus], np.int64), deadline).min())
    neighbours = [number for number, host in enumerate(hosts) if host == hosts[rank]]
    why_not = why_not_share_memory()
    segments = None if why_not else ArenaSegments.create()
    try:
        places = tell_all(runner, _describe(segments), deadline)
        arena = None
        if segments and places[neighbours, 0].all():
            try:
                arena = _map_arena(segments, rank, neighbours, names, places)
            except OSError as error:
                why_not = f"the memory of the other ranks is out of reach: {error}"
        if why_not and is_world:
            _log.warning("rank %d uses TCP on its own host, too: it cannot share memory: %s", names[rank], why_not)
        has_arena, all_cpus = tell_all(runner, np.array([arena is not None, cpus], np.int64), deadline).T
    finally:
        if segments:
            segments.release()  # all ranks that can map it have mapped it
    shared: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        together = [other for other, its_host in enumerate(hosts) if its_host == host]
        word = host if all(has_arena[together]) else f"{host} {number}"
        shared.setdefault(word, []).append(number)
    topology = Topology(tuple(map(tuple, shared.values())))
    if arena and len(topology.host_of(rank)) == 1:
        arena.close()
        arena = None
    return arena, topology, int(all_cpus.min())


def _log_strangers(rank: int, hosts: Sequence[str]) -> None:
    """Log with which ranks of its machine this rank shares no memory, and why. The lower rank of each pair does it."""
    for reason in dict.fromkeys(why_apart(hosts[rank], host) for host in hosts[rank + 1 :]):
        if reason:
            others = [other for other in range(rank + 1, len(hosts)) if why_apart(hosts[rank], hosts[other]) == reason]
            _log.warning(
                "rank %d uses TCP to reach %s on its own machine: %s",
                rank,
                ", ".join(f"rank {other}" for other in others),
                reason,
            )


def _describe(segments: ArenaSegments | None) -> Array:
    if segments is None:
        return np.zeros(5, np.int64)
    board, results = segments.board.place, segments.results.place
    return np.array([board.pid, board.descriptor, board.inode, results.descriptor, results.inode], np.int64)


def _map_arena(
    segments: ArenaSegments, rank: int, neighbours: Sequence[int], names: Sequence[int], places: Array
) -> Arena:
    first = places[neighbours[0]].tolist()
    boards = [Place(*places[number, :3].tolist()) for number in neighbours]
    results = Place(first[0], *first[3:])
    return Arena(segments, neighbours.index(rank), [names[number] for number in neighbours], boards, results)
