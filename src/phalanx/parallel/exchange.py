"""What an engine needs of others: their pieces added up, their words, and whether a step counts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from phalanx.buffers import Array, pieces
from phalanx.collectives import Finish
from phalanx.errors import ConfigError, Halted
from phalanx.group import Group
from phalanx.parallel.agree import broadcast, compare
from phalanx.parallel.flat import Layout
from phalanx.parallel.lanes import own_lanes
from phalanx.parallel.shards import Ownership, share_blocks


class Exchange(Protocol):
    """Ranks that train together. All make the same calls in the same order."""

    rank: int
    size: int
    lanes: int
    is_result_shared: bool
    """Whether all ranks see one and the same sum, so that each may change only its part of it."""

    def begin_alike(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Make every rank's tensors equal to rank 0's, or raise ConfigError if they are not of the same shapes."""

    def allocate(self, rows: int, length: int) -> Array:
        """Zeroed f32 memory for the rows of a bucket."""

    def allocate_sum(self, length: int) -> Array:
        """Zeroed f32 memory for the sum of a bucket; all ranks call this together."""

    def fold(
        self,
        number: int,
        rows: Array,
        out: Array,
        cuts: Sequence[slice],
        finish: Finish,
        own: Mapping[int, Array] | None = None,
    ) -> None:
        """Add up the pieces of bucket ``number``, and do what ``finish`` says.

        ``own`` has, by cut, what this rank itself adds up of its only piece, if that is not in the rows.
        """

    def add_up(self, row: Array) -> None:
        """Replace a row of f64 by the sum of all ranks' rows."""

    def commit(self, loss: float, digest: bytes) -> None:
        """Return when the step counts for everybody."""

    def halt(self, error: Halted) -> None:
        """Stop everybody at this step."""

    def waited_s(self) -> float:
        """How long this rank has waited for others so far."""


class Sharding(NamedTuple):
    """Who owns what, among ranks that reach each other: through a gradient server nobody could show what it updated."""

    ownership: Ownership
    exchange: "GroupExchange"


class GroupExchange:
    """An exchange within a group: through the arena on one host, over links between hosts."""

    def __init__(self, group: Group) -> None:
        if group.lanes is None:
            raise ConfigError(
                "an engine takes steps in lanes: join the group with phalanx.connect(lanes=8), for example"
            )
        self.rank, self.size, self.lanes = group.rank, group.size, group.lanes
        self.is_result_shared = len(group.hosts) == 1 < group.size
        self.group = group
        own = own_lanes(self.lanes, self.size, self.rank)
        self._pieces = len(pieces(own.start, own.stop, self.lanes))

    def begin_alike(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Compare names and shapes first, then copy."""
        compare(named, self.group)
        broadcast([tensor for _, tensor in named], self.group)

    def allocate(self, rows: int, length: int) -> Array:
        """In the arena, if there is one."""
        return self.group.allocate((rows, length))

    def allocate_sum(self, length: int) -> Array:
        """Shared, if everybody can share it."""
        return self.group.allocate(length, shared=True) if self.is_result_shared else np.zeros(length, np.float32)

    def fold(
        self,
        number: int,  # noqa: ARG002 - calls come in order
        rows: Array,
        out: Array,
        cuts: Sequence[slice],
        finish: Finish,
        own: Mapping[int, Array] | None = None,
    ) -> None:
        """One call of the group."""
        self.group.fold_lanes(rows[: self._pieces], out, lanes=self.lanes, blocks=cuts, finish=finish, own=own)

    def scatter(
        self,
        rows: Array,
        out: Array,
        cuts: Sequence[slice],
        owners: Sequence[int],
        finish: Finish,
        own: Mapping[int, Array] | None,
    ) -> None:
        """Add up the pieces of a bucket as ``fold`` does, but each cut only for its owner."""
        pieces = rows[: self._pieces]
        self.group.scatter_lanes(pieces, out, lanes=self.lanes, blocks=cuts, owners=owners, finish=finish, own=own)

    def add_up(self, row: Array) -> None:
        """One call of the group."""
        self.group.all_reduce(row)

    def commit(self, loss: float, digest: bytes) -> None:
        """Ask the coordinator."""
        self.group.commit(loss, digest)

    def halt(self, error: Halted) -> None:
        """Tell the coordinator."""
        self.group.halt(error)

    def waited_s(self) -> float:
        """As the group counts it."""
        return sum(self.group.statistics().waited_s.values())


def make_sharding(exchange: Exchange, layout: Layout) -> Sharding | None:
    """Share blocks out among all ranks; None if there is only one."""
    if exchange.size == 1:
        return None
    if not isinstance(exchange, GroupExchange):
        raise ConfigError(
            "workers that only reach a gradient server cannot share an optimizer: leave zero out, or connect them"
        )
    owners = share_blocks([block.stop - block.start for block in layout.blocks], [0] * exchange.size)
    return Sharding(Ownership(layout.blocks, tuple(owners)), exchange)
