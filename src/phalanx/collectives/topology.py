"""Which ranks share memory, and what follows: who adds up what, who stands for whom, what a host contributes.

Every rank works this out by itself, from the topology alone, and all come to the same.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from phalanx.buffers import cover, even_part, even_parts, own_lanes, pieces
from phalanx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """Which ranks share memory: each host is the ranks that do."""

    hosts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = sorted(rank for host in self.hosts for rank in host)
        if not ranks or ranks != list(range(len(ranks))) or () in self.hosts:
            raise ConfigError(f"hosts must share out the ranks from 0 on, each rank once, not {self.hosts}")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.hosts))

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return len(self.hosts) == 1

    @property
    def is_flat(self) -> bool:
        """Whether no two ranks share memory."""
        return len(self.hosts) == self.size

    def host_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that share memory with ``rank``, itself among them."""
        return self.hosts[self.number_of_host(rank)]

    def number_of_host(self, rank: int) -> int:
        """Return the number of the host that ``rank`` is on."""
        return next(number for number, host in enumerate(self.hosts) if rank in host)

    def __str__(self) -> str:
        return f"{count_of(self.size, 'rank')} on {count_of(len(self.hosts), 'host')}"


class RankPiece(NamedTuple):
    """The sum of the consecutive lanes ``span``, which is row ``row`` of the pieces that ``rank`` brings."""

    span: range
    rank: int
    row: int


class HostPiece(NamedTuple):
    """The sum of the consecutive lanes ``span``, made of pieces of the ranks of one host."""

    span: range
    parts: tuple[RankPiece, ...]


@lru_cache
def share_out(length: int, topology: Topology) -> tuple[slice, ...]:
    """Return the part of ``length`` items that each rank adds up: even by host, and then among the host's ranks."""
    parts = [slice(0, 0)] * topology.size
    for host, whole in zip(topology.hosts, even_parts(length, len(topology.hosts)), strict=True):
        for position, rank in enumerate(host):
            part = even_part(whole.stop - whole.start, len(host), position)
            parts[rank] = slice(whole.start + part.start, whole.start + part.stop)
    return tuple(parts)


@lru_cache
def owners_of(count: int, topology: Topology) -> tuple[int, ...]:
    """Return the rank that adds up each of ``count`` blocks, if nobody says who owns them."""
    owners = [0] * count
    for rank, part in enumerate(share_out(count, topology)):
        owners[part] = [rank] * (part.stop - part.start)
    return tuple(owners)


@lru_cache
def stand_ins(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return for each host, and each rank of the group, the rank of that host that stands for it.

    On its own host a rank stands for itself. Elsewhere it is the rank in the same position, so that the ranks of a host
    share the work of sending.
    """
    positions = {rank: position for host in topology.hosts for position, rank in enumerate(host)}
    return tuple(tuple(host[positions[rank] % len(host)] for rank in range(topology.size)) for host in topology.hosts)


@lru_cache
def pieces_by_rank(lanes: int, size: int) -> tuple[tuple[range, ...], ...]:
    """Return the lanes of each piece that each of ``size`` ranks brings."""
    owned = [own_lanes(lanes, size, rank) for rank in range(size)]
    return tuple(pieces(each.start, each.stop, lanes) for each in owned)


@lru_cache
def pieces_by_host(lanes: int, topology: Topology) -> tuple[tuple[HostPiece, ...], ...]:
    """Return what each host contributes to a sum of lanes: as few whole subtrees as its ranks' lanes make."""
    brought = pieces_by_rank(lanes, topology.size)
    return tuple(_pieces_of(lanes, host, brought) for host in topology.hosts)


def _pieces_of(lanes: int, host: tuple[int, ...], brought: tuple[tuple[range, ...], ...]) -> tuple[HostPiece, ...]:
    parts = sorted(
        (RankPiece(span, rank, row) for rank in host for row, span in enumerate(brought[rank])),
        key=lambda part: part.span.start,
    )
    spans = cover({lane for part in parts for lane in part.span}, lanes)
    return tuple(HostPiece(span, tuple(part for part in parts if part.span.start in span)) for span in spans)


def count_of(number: int, noun: str) -> str:
    """Return a number and what it counts, in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
