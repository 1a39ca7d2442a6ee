"""Which ranks share memory. From this follow who adds up what, who stands in for whom, and what a host contributes.

Every rank computes this from the topology alone, so all ranks get the same answers without asking each other.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from phalanx.buffers import LaneShares, cover, even_part, even_parts
from phalanx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """Which ranks share memory: ``hosts`` lists the ranks of each host."""

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
        """Return the ranks that share memory with ``rank``, including ``rank`` itself."""
        return self.hosts[self.number_of_host(rank)]

    def number_of_host(self, rank: int) -> int:
        """Return the number of the host that ``rank`` is on."""
        return next(number for number, host in enumerate(self.hosts) if rank in host)

    def __str__(self) -> str:
        return f"{count_of(self.size, 'rank')} on {count_of(len(self.hosts), 'host')}"


class RankPiece(NamedTuple):
    """The sum of consecutive ``lanes`` that a rank contributes: row ``row`` of the pieces of ``rank``."""

    lanes: range
    rank: int
    row: int


class HostPiece(NamedTuple):
    """The sum of consecutive ``lanes`` that a host contributes: the sum of ``pieces`` of its ranks."""

    lanes: range
    pieces: tuple[RankPiece, ...]


@lru_cache
def share_out(length: int, topology: Topology) -> tuple[slice, ...]:
    """Return the part of ``length`` items that each rank adds up: shared evenly by hosts, then by a host's ranks."""
    parts = [slice(0, 0)] * topology.size
    for host, whole in zip(topology.hosts, even_parts(length, len(topology.hosts)), strict=True):
        for position, rank in enumerate(host):
            part = even_part(whole.stop - whole.start, len(host), position)
            parts[rank] = slice(whole.start + part.start, whole.start + part.stop)
    return tuple(parts)


@lru_cache
def owners_of(count: int, topology: Topology) -> tuple[int, ...]:
    """Return the rank that adds up each of ``count`` blocks, if the caller does not say who owns them."""
    owners = [0] * count
    for rank, part in enumerate(share_out(count, topology)):
        owners[part] = [rank] * (part.stop - part.start)
    return tuple(owners)


@lru_cache
def stand_ins(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return, for each host and each rank of the group, the rank of this host that stands in for the rank.

    On its own host a rank stands in for itself. On another host its stand-in is the rank in the same position, so that
    the ranks of a host share the work of sending.
    """
    positions = {rank: position for host in topology.hosts for position, rank in enumerate(host)}
    return tuple(tuple(host[positions[rank] % len(host)] for rank in range(topology.size)) for host in topology.hosts)


@lru_cache
def pieces_by_host(shares: LaneShares, topology: Topology) -> tuple[tuple[HostPiece, ...], ...]:
    """Return what each host contributes to a sum of lanes: as few whole subtrees as its ranks' lanes make."""
    by_rank = tuple(shares.pieces(rank) for rank in range(topology.size))
    return tuple(_pieces_of(shares.count, host, by_rank) for host in topology.hosts)


def _pieces_of(lanes: int, host: tuple[int, ...], by_rank: tuple[tuple[range, ...], ...]) -> tuple[HostPiece, ...]:
    found = sorted(
        (RankPiece(covered, rank, row) for rank in host for row, covered in enumerate(by_rank[rank])),
        key=lambda piece: piece.lanes.start,
    )
    subtrees = cover({lane for piece in found for lane in piece.lanes}, lanes)
    return tuple(HostPiece(each, tuple(piece for piece in found if piece.lanes.start in each)) for each in subtrees)


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
