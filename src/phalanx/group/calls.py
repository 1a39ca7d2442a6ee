"""Everything that can be called on a group, in two forms: one that waits, and one that does not."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from phalanx.buffers import Array, DType, ReduceOp
from phalanx.collectives import Finish
from phalanx.group.operations import Operation, Operations
from phalanx.transport import Pending

Result = TypeVar("Result")


class Calls(ABC):
    """The collectives, each checked, then done now or in its turn.

    All ranks make the same calls in the same order, with arrays of the same type and length. ``timeout_s`` is how long
    a call may take, the group's ``timeout_s`` if it is not given.
    """

    _operations: Operations

    @abstractmethod
    def _now(self, operation: Operation[Result], timeout_s: float | None) -> Result: ...

    @abstractmethod
    def _later(self, operation: Operation[Result], timeout_s: float | None) -> Pending[Result]: ...

    def all_reduce(
        self,
        array: Array,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Array | None = None,
        wire: DType | str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Fold all ranks' arrays into one that every rank has: in place, or in ``out``.

        Fastest if ``array`` comes from ``allocate`` and ``out`` from ``allocate(..., shared=True)``: then nothing is
        copied. ``wire="bf16"`` sends f32 as bf16 between hosts.
        """
        return self._now(self._operations.all_reduce(array, op, out, wire), timeout_s)

    def all_reduce_nowait(
        self,
        array: Array,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Array | None = None,
        wire: DType | str | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Array]:
        """Begin an ``all_reduce``; leave the arrays alone until it is done."""
        return self._later(self._operations.all_reduce(array, op, out, wire), timeout_s)

    def fold_lanes(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int,
        blocks: Sequence[slice] | None = None,
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Add up ``lanes`` lanes, of which every rank has an even part: the same bits for any number of ranks.

        ``pieces`` has a row for each whole subtree of this rank's lanes (``phalanx.buffers.pieces``) and comes from
        ``allocate``; ``out`` comes from ``allocate(..., shared=True)``. ``finish`` says what the rank that adds up a
        block does with the sum before others see it. A rank with a single piece may have blocks of it elsewhere, if
        it is the first to add them up (``blocks_added_first``): ``own`` has them by their numbers, and ``pieces`` need
        not.
        """
        return self._now(self._operations.fold_lanes(pieces, out, lanes, blocks, finish, wire, own), timeout_s)

    def fold_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int,
        blocks: Sequence[slice] | None = None,
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Array]:
        """Begin a ``fold_lanes``; leave all its arrays alone until it is done."""
        return self._later(self._operations.fold_lanes(pieces, out, lanes, blocks, finish, wire, own), timeout_s)

    def scatter_lanes(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int,
        blocks: Sequence[slice],
        owners: Sequence[int],
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Add up lanes as ``fold_lanes`` does, but each block only on its owner: ``owners`` has a rank for each.

        The blocks come in order and do not overlap. ``out`` is any array as long as a row, or the first row of
        ``pieces`` itself; of it only this rank's own blocks are written, with the bits of a ``fold_lanes``.
        """
        operation = self._operations.scatter_lanes(pieces, out, lanes, blocks, owners, finish, wire, own)
        return self._now(operation, timeout_s)

    def scatter_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int,
        blocks: Sequence[slice],
        owners: Sequence[int],
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Array]:
        """Begin a ``scatter_lanes``; leave all its arrays alone until it is done."""
        operation = self._operations.scatter_lanes(pieces, out, lanes, blocks, owners, finish, wire, own)
        return self._later(operation, timeout_s)

    def reduce_scatter(
        self,
        array: Array,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Fold all ranks' arrays and return this rank's rows of the result; the first ranks may get one more."""
        return self._now(self._operations.reduce_scatter(array, op, out), timeout_s)

    def reduce_scatter_nowait(
        self,
        array: Array,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Array]:
        """Begin a ``reduce_scatter``."""
        return self._later(self._operations.reduce_scatter(array, op, out), timeout_s)

    def all_gather(self, array: Array, *, out: Array | None = None, timeout_s: float | None = None) -> Array:
        """Stack all ranks' arrays, which are alike in shape, by rank."""
        return self._now(self._operations.all_gather(array, out), timeout_s)

    def all_gather_nowait(
        self, array: Array, *, out: Array | None = None, timeout_s: float | None = None
    ) -> Pending[Array]:
        """Begin an ``all_gather``."""
        return self._later(self._operations.all_gather(array, out), timeout_s)

    def all_gather_unequal(self, array: Array, *, timeout_s: float | None = None) -> list[Array]:
        """List all ranks' arrays by rank; they may differ in the length of their first axis."""
        return self._now(self._operations.all_gather_unequal(array), timeout_s)

    def all_gather_unequal_nowait(self, array: Array, *, timeout_s: float | None = None) -> Pending[list[Array]]:
        """Begin an ``all_gather_unequal``."""
        return self._later(self._operations.all_gather_unequal(array), timeout_s)

    def broadcast(self, array: Array, root: int = 0, *, timeout_s: float | None = None) -> Array:
        """Make every rank's array equal to the root's."""
        return self._now(self._operations.broadcast(array, root), timeout_s)

    def broadcast_nowait(self, array: Array, root: int = 0, *, timeout_s: float | None = None) -> Pending[Array]:
        """Begin a ``broadcast``."""
        return self._later(self._operations.broadcast(array, root), timeout_s)

    def broadcast_blocks(
        self, array: Array, *, blocks: Sequence[slice], owners: Sequence[int], timeout_s: float | None = None
    ) -> Array:
        """Make every block of the array, on all ranks, what its owner has there: ``owners`` has a rank for each.

        The blocks come in order and do not overlap; what none of them covers is left alone. On one host the array comes
        from ``allocate``.
        """
        return self._now(self._operations.broadcast_blocks(array, blocks, owners), timeout_s)

    def broadcast_blocks_nowait(
        self, array: Array, *, blocks: Sequence[slice], owners: Sequence[int], timeout_s: float | None = None
    ) -> Pending[Array]:
        """Begin a ``broadcast_blocks``; leave the blocks alone until it is done."""
        return self._later(self._operations.broadcast_blocks(array, blocks, owners), timeout_s)

    def reduce(
        self, array: Array, root: int = 0, op: ReduceOp | str = ReduceOp.SUM, *, timeout_s: float | None = None
    ) -> Array:
        """Fold all ranks' arrays into the root's; the others keep theirs."""
        return self._now(self._operations.reduce(array, root, op), timeout_s)

    def reduce_nowait(
        self, array: Array, root: int = 0, op: ReduceOp | str = ReduceOp.SUM, *, timeout_s: float | None = None
    ) -> Pending[Array]:
        """Begin a ``reduce``."""
        return self._later(self._operations.reduce(array, root, op), timeout_s)

    def gather(self, array: Array, root: int = 0, *, timeout_s: float | None = None) -> Array | None:
        """Stack all ranks' arrays by rank, on the root; the others get None."""
        return self._now(self._operations.gather(array, root), timeout_s)

    def gather_nowait(self, array: Array, root: int = 0, *, timeout_s: float | None = None) -> Pending[Array | None]:
        """Begin a ``gather``."""
        return self._later(self._operations.gather(array, root), timeout_s)

    def scatter(self, array: Array | None, out: Array, root: int = 0, *, timeout_s: float | None = None) -> Array:
        """Put row r of the root's array into the ``out`` of rank r; the others pass None."""
        return self._now(self._operations.scatter(array, out, root), timeout_s)

    def scatter_nowait(
        self, array: Array | None, out: Array, root: int = 0, *, timeout_s: float | None = None
    ) -> Pending[Array]:
        """Begin a ``scatter``."""
        return self._later(self._operations.scatter(array, out, root), timeout_s)

    def all_to_all(self, array: Array, *, timeout_s: float | None = None) -> Array:
        """Send part r of the array, cut along its first axis, to rank r, and return what came, by rank."""
        return self._now(self._operations.all_to_all(array), timeout_s)

    def all_to_all_nowait(self, array: Array, *, timeout_s: float | None = None) -> Pending[Array]:
        """Begin an ``all_to_all``."""
        return self._later(self._operations.all_to_all(array), timeout_s)

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when every rank has come here."""
        self._now(self._operations.barrier(), timeout_s)

    def barrier_nowait(self, *, timeout_s: float | None = None) -> Pending[None]:
        """Begin a ``barrier``."""
        return self._later(self._operations.barrier(), timeout_s)

    def send(self, array: Array, to: int, *, timeout_s: float | None = None) -> None:
        """Send an array to one peer, who calls ``recv`` with one of the same type and length."""
        self._now(self._operations.send(array, to), timeout_s)

    def send_nowait(self, array: Array, to: int, *, timeout_s: float | None = None) -> Pending[None]:
        """Begin a ``send``."""
        return self._later(self._operations.send(array, to), timeout_s)

    def recv(self, array: Array, source: int, *, timeout_s: float | None = None) -> Array:
        """Fill the array with what one peer sends."""
        return self._now(self._operations.recv(array, source), timeout_s)

    def recv_nowait(self, array: Array, source: int, *, timeout_s: float | None = None) -> Pending[Array]:
        """Begin a ``recv``."""
        return self._later(self._operations.recv(array, source), timeout_s)
