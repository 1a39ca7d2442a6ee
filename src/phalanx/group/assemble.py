"""Making a team: links to everybody, and memory shared with those who can share it."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from phalanx.buffers import Array, DType, even_parts
from phalanx.collectives import Call, Team, Topology
from phalanx.transport import Arena, ArenaSegments, Connector, Deadline, Epoch, Link, Place, can_share_memory
from phalanx.wire import Collective, Signature


def assemble(
    rank: int,
    names: Sequence[int],
    hosts: Sequence[str],
    connector: Connector,
    key: bytes,
    deadline: Deadline,
    epoch: Epoch,
) -> Team:
    """The team of the ranks that ``names`` lists, as the one at ``rank`` sees it.

    ``names`` are the ranks by which the world knows them; ``hosts`` says for each where it runs.
    """
    with ExitStack() as undo:
        links, channels = (
            _join(rank, names, connector, each, deadline, epoch, undo)
            for each in (key, hashlib.sha256(key).digest()[:16])
        )
        apart = Team(
            rank, names, Topology(tuple((number,) for number in range(len(names)))), links, channels, None, epoch
        )
        arena, topology = None, apart.topology
        if len(set(hosts)) < len(hosts):
            arena, topology = _share_memory(apart, names, hosts, deadline)
        undo.pop_all()
    return Team(rank, names, topology, links, channels, arena, epoch)


def _join(
    rank: int,
    names: Sequence[int],
    connector: Connector,
    key: bytes,
    deadline: Deadline,
    epoch: Epoch,
    undo: ExitStack,
) -> dict[int, Link]:
    """Links to all the others, by their rank in this team; ``undo`` closes them."""
    peers = [name for name in names if name != names[rank]]
    links = {
        names.index(name): link for name, link in connector.links(key, names[rank], peers, deadline, epoch).items()
    }
    for link in links.values():
        undo.callback(link.close)
    return links


def _share_memory(
    apart: Team, names: Sequence[int], hosts: Sequence[str], deadline: Deadline
) -> tuple[Arena | None, Topology]:
    """An arena on every host where all ranks can reach each other's memory, and who shares memory then."""
    neighbours = [number for number, host in enumerate(hosts) if host == hosts[apart.rank]]
    segments = ArenaSegments.create() if can_share_memory() else None
    try:
        places = _tell_all(apart, _describe(segments), deadline)
        arena = _map_arena(segments, apart.rank, neighbours, names, places)
        has_arena = _tell_all(apart, np.array([arena is not None], np.int64), deadline)[:, 0]
    finally:
        if segments:
            segments.release()  # whoever could map it has done so
    shared: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        together = [other for other, its_host in enumerate(hosts) if its_host == host]
        word = host if all(has_arena[together]) else f"{host} {number}"
        shared.setdefault(word, []).append(number)
    topology = Topology(tuple(map(tuple, shared.values())))
    if arena and len(topology.host_of(apart.rank)) == 1:
        arena.close()
        arena = None
    return arena, topology


def _describe(segments: ArenaSegments | None) -> Array:
    if segments is None:
        return np.zeros(5, np.int64)
    board, results = segments.board.place, segments.results.place
    return np.array([board.pid, board.descriptor, board.inode, results.descriptor, results.inode], np.int64)


def _map_arena(
    segments: ArenaSegments | None, rank: int, neighbours: Sequence[int], names: Sequence[int], places: Array
) -> Arena | None:
    if segments is None:
        return None
    first = places[neighbours[0]].tolist()
    boards = [Place(*places[number, :3].tolist()) for number in neighbours]
    results = Place(first[0], *first[3:])
    try:
        return Arena(segments, neighbours.index(rank), [names[number] for number in neighbours], boards, results)
    except OSError:  # another user, another container, no such memory: links serve as well
        return None


def _tell_all(team: Team, words: Array, deadline: Deadline) -> Array:
    """Every rank's words, by rank; setting up is call 0, so that people's own begin at 1."""
    told = np.zeros((team.size, len(words)), np.int64)
    call = Call(Signature(Collective.ALL_GATHER, DType.I64, told.size), 0, deadline)
    team.all_gather(call, words, even_parts(told.size, team.size), told.reshape(-1))
    return told
