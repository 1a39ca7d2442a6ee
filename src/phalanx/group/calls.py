"""All calls of a group, in two forms: one that waits for the result, and one that does not."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from phalanx.buffers import Array, DType, LaneShares, ReduceOp
from phalanx.collectives import Finish
from phalanx.group.objects import ObjectOperations
from phalanx.group.operations import Given, Operation, Operations
from phalanx.group.unequal import UnequalOperations
from phalanx.transport import Pending

Result = TypeVar("Result")


class Calls(ABC):
    """The collectives of a group. A ``_nowait`` call returns a ``Pending`` at once and is performed in order.

    All ranks make the same calls in the same order, with arrays of the same type and length. An array is one of numpy,
    or a tensor of torch on the CPU; what a call makes is of the same kind. ``timeout_s`` is how long a call may take;
    the default is the group's ``timeout_s``.
    """

    _operations: Operations
    _unequal: UnequalOperations
    _objects: ObjectOperations

    @abstractmethod
    def _now(self, operation: Operation[Result], timeout_s: float | None) -> Result: ...

    @abstractmethod
    def _later(self, operation: Operation[Result], timeout_s: float | None) -> Pending[Result]: ...

    def all_reduce(
        self,
        array: Given,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Given | None = None,
        wire: DType | str | None = None,
        timeout_s: float | None = None,
    ) -> Given:
        """Reduce the arrays of all ranks, and write the result into ``out``, or into ``array`` if there is no ``out``.

        This is fastest if ``array`` comes from ``allocate`` and ``out`` from ``allocate(..., shared=True)``: then
        nothing is copied. ``wire="bf16"`` sends f32 as bf16 between hosts. Of a number, the reduced number is returned.
        """
        return self._now(self._operations.all_reduce(array, op, out, wire), timeout_s)

    def all_reduce_nowait(
        self,
        array: Given,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Given | None = None,
        wire: DType | str | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Given]:
        """Begin an ``all_reduce``; do not use the arrays until it is done."""
        return self._later(self._operations.all_reduce(array, op, out, wire), timeout_s)

    def fold_lanes(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int | LaneShares,
        blocks: Sequence[slice] | None = None,
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Write the sum of all lanes into ``out``, with the same bits for any number of ranks.

        Every rank owns an even part of the ``lanes``, unless these are ``LaneShares`` that say otherwise. ``pieces``
        has a row for each whole subtree of this rank's lanes (``LaneShares.pieces``) and comes from ``allocate``.
        ``out`` comes from ``allocate(..., shared=True)``.
        ``finish`` says what the rank that adds up a block does with the sum before other ranks get it. A rank with a
        single piece may pass blocks of it in ``own``, by their numbers, instead of storing them in ``pieces``. It must
        be the first to add these blocks up (``blocks_added_first``).
        """
        return self._now(self._operations.fold_lanes(pieces, out, lanes, blocks, finish, wire, own), timeout_s)

    def fold_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int | LaneShares,
        blocks: Sequence[slice] | None = None,
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Array]:
        """Begin a ``fold_lanes``; do not use its arrays until it is done."""
        return self._later(self._operations.fold_lanes(pieces, out, lanes, blocks, finish, wire, own), timeout_s)

    def scatter_lanes(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int | LaneShares,
        blocks: Sequence[slice],
        owners: Sequence[int],
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Add up lanes as ``fold_lanes`` does, but give the sum of a block only to its owner.

        ``owners`` has a rank for each block. The blocks come in order and do not overlap. ``out`` is any array as long
        as a row, or the first row of ``pieces`` itself. Only this rank's own blocks of it are written, with the bits of
        a ``fold_lanes``.
        """
        operation = self._operations.scatter_lanes(pieces, out, lanes, blocks, owners, finish, wire, own)
        return self._now(operation, timeout_s)

    def scatter_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int | LaneShares,
        blocks: Sequence[slice],
        owners: Sequence[int],
        finish: Finish | None = None,
        wire: DType | str | None = None,
        own: Mapping[int, Array] | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Array]:
        """Begin a ``scatter_lanes``; do not use its arrays until it is done."""
        operation = self._operations.scatter_lanes(pieces, out, lanes, blocks, owners, finish, wire, own)
        return self._later(operation, timeout_s)

    def reduce_scatter(
        self,
        array: Given,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Given | None = None,
        timeout_s: float | None = None,
    ) -> Given:
        """Reduce the arrays of all ranks, and return this rank's rows; the first ranks may get one more row."""
        return self._now(self._operations.reduce_scatter(array, op, out), timeout_s)

    def reduce_scatter_nowait(
        self,
        array: Given,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        out: Given | None = None,
        timeout_s: float | None = None,
    ) -> Pending[Given]:
        """Begin a ``reduce_scatter``."""
        return self._later(self._operations.reduce_scatter(array, op, out), timeout_s)

    def all_gather(self, array: Given, *, out: Given | None = None, timeout_s: float | None = None) -> Given:
        """Return the arrays of all ranks, which have the same shape, stacked by rank."""
        return self._now(self._operations.all_gather(array, out), timeout_s)

    def all_gather_nowait(
        self, array: Given, *, out: Given | None = None, timeout_s: float | None = None
    ) -> Pending[Given]:
        """Begin an ``all_gather``."""
        return self._later(self._operations.all_gather(array, out), timeout_s)

    def all_gather_unequal(self, array: Given, *, timeout_s: float | None = None) -> list[Given]:
        """Return a list of the arrays of all ranks; they may differ in the length of their first axis."""
        return self._now(self._unequal.all_gather(array), timeout_s)

    def all_gather_unequal_nowait(self, array: Given, *, timeout_s: float | None = None) -> Pending[list[Given]]:
        """Begin an ``all_gather_unequal``."""
        return self._later(self._unequal.all_gather(array), timeout_s)

    def broadcast(self, array: Given, root: int = 0, *, timeout_s: float | None = None) -> Given:
        """Make every rank's array equal to the root's. Of a number, the root's is returned."""
        return self._now(self._operations.broadcast(array, root), timeout_s)

    def broadcast_nowait(self, array: Given, root: int = 0, *, timeout_s: float | None = None) -> Pending[Given]:
        """Begin a ``broadcast``."""
        return self._later(self._operations.broadcast(array, root), timeout_s)

    def broadcast_blocks(
        self, array: Given, *, blocks: Sequence[slice], owners: Sequence[int], timeout_s: float | None = None
    ) -> Given:
        """Copy each block of the array from its owner to all other ranks.

        ``owners`` has a rank for each block. The blocks come in order and do not overlap. Elements outside of all
        blocks are not changed. On one host the array comes from ``allocate``.
        """
        return self._now(self._operations.broadcast_blocks(array, blocks, owners), timeout_s)

    def broadcast_blocks_nowait(
        self, array: Given, *, blocks: Sequence[slice], owners: Sequence[int], timeout_s: float | None = None
    ) -> Pending[Given]:
        """Begin a ``broadcast_blocks``; do not use the blocks until it is done."""
        return self._later(self._operations.broadcast_blocks(array, blocks, owners), timeout_s)

    def reduce(
        self, array: Given, root: int = 0, op: ReduceOp | str = ReduceOp.SUM, *, timeout_s: float | None = None
    ) -> Given:
        """Reduce the arrays of all ranks into the root's array; the other ranks keep theirs.

        Of a number, the reduced number is returned on the root, and a rank's own on the others.
        """
        return self._now(self._operations.reduce(array, root, op), timeout_s)

    def reduce_nowait(
        self, array: Given, root: int = 0, op: ReduceOp | str = ReduceOp.SUM, *, timeout_s: float | None = None
    ) -> Pending[Given]:
        """Begin a ``reduce``."""
        return self._later(self._operations.reduce(array, root, op), timeout_s)

    def gather(self, array: Given, root: int = 0, *, timeout_s: float | None = None) -> Given | None:
        """Return the arrays of all ranks, stacked by rank, on the root; return None on the other ranks."""
        return self._now(self._operations.gather(array, root), timeout_s)

    def gather_nowait(self, array: Given, root: int = 0, *, timeout_s: float | None = None) -> Pending[Given | None]:
        """Begin a ``gather``."""
        return self._later(self._operations.gather(array, root), timeout_s)

    def scatter(self, array: Given | None, out: Given, root: int = 0, *, timeout_s: float | None = None) -> Given:
        """Copy row r of the root's array into ``out`` of rank r; ranks other than the root pass None."""
        return self._now(self._operations.scatter(array, out, root), timeout_s)

    def scatter_nowait(
        self, array: Given | None, out: Given, root: int = 0, *, timeout_s: float | None = None
    ) -> Pending[Given]:
        """Begin a ``scatter``."""
        return self._later(self._operations.scatter(array, out, root), timeout_s)

    def all_to_all(self, array: Given, *, timeout_s: float | None = None) -> Given:
        """Send part r of the array, cut along its first axis, to rank r, and return the parts received, by rank."""
        return self._now(self._operations.all_to_all(array), timeout_s)

    def all_to_all_nowait(self, array: Given, *, timeout_s: float | None = None) -> Pending[Given]:
        """Begin an ``all_to_all``."""
        return self._later(self._operations.all_to_all(array), timeout_s)

    def scatter_unequal(
        self, arrays: Sequence[Given] | None, root: int = 0, *, timeout_s: float | None = None
    ) -> Given:
        """Return array r of the root's list on rank r; ranks other than the root pass None.

        The arrays may differ in the length of their first axis.
        """
        return self._now(self._unequal.scatter(arrays, root), timeout_s)

    def scatter_unequal_nowait(
        self, arrays: Sequence[Given] | None, root: int = 0, *, timeout_s: float | None = None
    ) -> Pending[Given]:
        """Begin a ``scatter_unequal``."""
        return self._later(self._unequal.scatter(arrays, root), timeout_s)

    def all_to_all_unequal(self, arrays: Sequence[Given], *, timeout_s: float | None = None) -> list[Given]:
        """Send array r of the list to rank r, and return a list of the arrays received, by rank.

        The arrays may differ in the length of their first axis, also from rank to rank.
        """
        return self._now(self._unequal.all_to_all(arrays), timeout_s)

    def all_to_all_unequal_nowait(
        self, arrays: Sequence[Given], *, timeout_s: float | None = None
    ) -> Pending[list[Given]]:
        """Begin an ``all_to_all_unequal``."""
        return self._later(self._unequal.all_to_all(arrays), timeout_s)

    def all_gather_object(
        self, value: object, *, types: Iterable[type] = (), timeout_s: float | None = None
    ) -> list[Any]:
        """Return a list of the values of all ranks, by rank.

        Values are numbers, texts, bytes, None, arrays, tensors, dataclasses, and lists, tuples and dicts of these, of
        at most 64 MiB as bytes. They travel in msgpack: nothing is pickled. A dataclass comes back if its class is in
        this rank's own value or in ``types``.
        """
        return self._now(self._objects.all_gather(value, types), timeout_s)

    def all_gather_object_nowait(
        self, value: object, *, types: Iterable[type] = (), timeout_s: float | None = None
    ) -> Pending[list[Any]]:
        """Begin an ``all_gather_object``."""
        return self._later(self._objects.all_gather(value, types), timeout_s)

    def broadcast_object(
        self, value: object = None, root: int = 0, *, types: Iterable[type] = (), timeout_s: float | None = None
    ) -> Any:
        """Return the root's value, as in ``all_gather_object``; the other ranks may pass nothing."""
        return self._now(self._objects.broadcast(value, root, types), timeout_s)

    def broadcast_object_nowait(
        self, value: object = None, root: int = 0, *, types: Iterable[type] = (), timeout_s: float | None = None
    ) -> Pending[Any]:
        """Begin a ``broadcast_object``."""
        return self._later(self._objects.broadcast(value, root, types), timeout_s)

    def gather_object(
        self, value: object, root: int = 0, *, types: Iterable[type] = (), timeout_s: float | None = None
    ) -> list[Any] | None:
        """Return a list of the values of all ranks, as in ``all_gather_object``, on the root; None on other ranks."""
        return self._now(self._objects.gather(value, root, types), timeout_s)

    def gather_object_nowait(
        self, value: object, root: int = 0, *, types: Iterable[type] = (), timeout_s: float | None = None
    ) -> Pending[list[Any] | None]:
        """Begin a ``gather_object``."""
        return self._later(self._objects.gather(value, root, types), timeout_s)

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when all ranks have called this."""
        self._now(self._operations.barrier(), timeout_s)

    def barrier_nowait(self, *, timeout_s: float | None = None) -> Pending[None]:
        """Begin a ``barrier``."""
        return self._later(self._operations.barrier(), timeout_s)

    def send(self, array: Given, to: int, *, timeout_s: float | None = None) -> None:
        """Send an array to one peer, which calls ``recv`` with an array of the same type and length."""
        self._now(self._operations.send(array, to), timeout_s)

    def send_nowait(self, array: Given, to: int, *, timeout_s: float | None = None) -> Pending[None]:
        """Begin a ``send``."""
        return self._later(self._operations.send(array, to), timeout_s)

    def recv(self, array: Given, source: int, *, timeout_s: float | None = None) -> Given:
        """Receive an array from one peer into ``array``."""
        return self._now(self._operations.recv(array, source), timeout_s)

    def recv_nowait(self, array: Given, source: int, *, timeout_s: float | None = None) -> Pending[Given]:
        """Begin a ``recv``."""
        return self._later(self._operations.recv(array, source), timeout_s)
