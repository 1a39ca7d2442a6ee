"""Collectives of several hosts: in the arena of each host first, and then over links between hosts.

A host with a single rank has no arena, and one host alone needs no links: these are the same calls with less to do.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from phalanx.buffers import (
    Array,
    DType,
    ReduceOp,
    accumulate,
    finish,
    fold,
    round_to_bf16,
    slices,
    widen_bf16,
)
from phalanx.collectives.call import Call
from phalanx.collectives.lanes import LaneFold, LaneReduction, count_pieces
from phalanx.collectives.plan import Plan
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.shared import ArenaRunner
from phalanx.collectives.streaming import Chunk, Reduction, Streaming, cut_chunks, cut_parts
from phalanx.collectives.topology import Topology, share_out, stand_ins
from phalanx.errors import ConfigError

SMALL_BYTES = 1 << 12
"""An all-reduce of so few bytes takes as long as its messages are under way, however many bytes they have."""

_SECTION_BYTES = 1 << 24
"""How much of an all-reduce is in the arena at a time, where buffers lie elsewhere."""


class Layered:
    """One rank's side: the arena of its host, if others share it, and its links to those on other hosts."""

    def __init__(self, topology: Topology, links: LinkRunner, arena: ArenaRunner | None) -> None:
        self._rank = links.rank
        self._topology = topology
        self._host = topology.number_of_host(links.rank)
        self._neighbours = topology.hosts[self._host]
        self._links = links
        self._arena = arena
        self._shown = np.empty(0, np.uint8)
        self._shared = np.empty(0, np.uint8)

    def fold_lanes(self, call: Call, pieces: Array, target: Array, fold: LaneFold) -> None:
        """Write the sum of all lanes into the target of every host, or each block only into its owner's.

        ``pieces`` has this rank's, one after another. Nothing is copied within a host, and nobody writes what another
        rank reads. Waiting is patient: this goes on beside backward, which needs the core more.
        """
        rows = self._show_pieces(call, pieces, target, fold)
        chunks = cut_chunks(fold.blocks, fold.owners_in(self._topology), self._topology.size)
        reduction = LaneReduction(self._rank, self._topology, fold, call.signature.dtype, rows, target)
        self._stream(call, chunks, reduction, is_scattered=fold.is_scattered)
        if self._arena:
            self._arena.meet(call, is_patient=True)

    def broadcast_blocks(self, call: Call, array: Array, blocks: Sequence[slice], owners: Sequence[int]) -> None:
        """Make every block of the array what its owner has there.

        One rank of each host receives a block over a link, and the others copy it from that rank's array.
        """
        location = self._arena.arena.pool.locate(array) if self._arena else None
        if self._arena and location is None and len(array):
            raise ConfigError("the array of a broadcast_blocks comes from group.allocate(...)")
        chunks = cut_chunks(blocks, owners, self._topology.size)
        self._stream(call, chunks, _Copy(array))
        if self._arena is None:
            return
        agreement = self._arena.open(call, location, is_patient=True)
        shown = {
            rank: self._arena.read(index, post, len(array), call.signature.dtype)
            for index, (rank, post) in enumerate(zip(self._neighbours, agreement.posts, strict=True))
            if rank != self._rank and len(array)
        }
        stands_for = stand_ins(self._topology)[self._host]
        for owner, owned in enumerate(chunks):
            if stands_for[owner] != self._rank:
                for chunk in owned:
                    np.copyto(array[chunk.span], shown[stands_for[owner]][chunk.span])
        self._arena.meet(call, is_patient=True)

    def all_reduce(self, call: Call, source: Array, target: Array, op: ReduceOp, wire: DType | None) -> None:
        """Write the reduction of all sources into every target.

        Ranks of one host fold a chunk just before it is sent. Buffers that lie outside the arena go through it in
        sections.
        """
        if len(source) == 0:
            if self._arena:
                self._arena.open(call)
            self._links.run(Plan(), call, source, source, call.signature.dtype)
            return
        section = len(source) if self._topology.is_flat else max(1, _SECTION_BYTES // source.itemsize)
        for number, part in enumerate(slices(slice(0, len(source)), section)):
            self._reduce_section(call, 2 * number, source[part], target[part], op, wire)

    def _reduce_section(
        self, call: Call, first_round: int, source: Array, target: Array, op: ReduceOp, wire: DType | None
    ) -> None:
        dtype = call.signature.dtype
        parts = share_out(len(source), self._topology)
        stands_for = stand_ins(self._topology)[self._host]
        others = [part for part, stand_in in zip(parts, stands_for, strict=True) if stand_in != self._rank]
        sources, shared = [source], None
        if self._arena:
            sources, shared = self._show_source(self._arena, call, source, target, others)
        is_small = self._topology.is_flat and source.nbytes <= SMALL_BYTES
        if is_small:
            sources = [source.copy()]  # which leaves while the result is written
        reduction = _ArrayReduction(self._topology, self._host, sources, target, shared, op, dtype, wire)
        if is_small:  # everybody adds up everything: that takes one message each way instead of two
            whole = [Chunk(slice(0, len(source)))]
            self._stream(call, [whole] * self._topology.size, reduction, is_scattered=True)
            return
        self._stream(call, cut_parts(parts), reduction, first_round=first_round)
        if self._arena:
            self._arena.meet(call)
            if shared is not None:
                for part in others:
                    np.copyto(target[part], shared[part])

    def _stream(
        self,
        call: Call,
        chunks: Sequence[Sequence[Chunk]],
        reduction: Reduction,
        *,
        is_scattered: bool = False,
        first_round: int = 0,
    ) -> None:
        if len(self._topology.hosts) == 1:
            for chunk in chunks[self._rank]:
                reduction.add_up(chunk, {})
        elif call.signature.count == 0:  # ranks that have something must notice
            nothing = np.empty(0, np.uint8)
            self._links.run(Plan(), call, nothing, nothing, DType.U8)
        else:
            Streaming(
                self._links,
                self._topology,
                call,
                chunks,
                reduction,
                is_scattered=is_scattered,
                first_round=first_round,
            ).run()

    def _show_pieces(self, call: Call, pieces: Array, target: Array, fold: LaneFold) -> Mapping[int, Array]:
        """Begin a call of lanes in the arena, and return the pieces of every rank of this host."""
        counts, dtype = count_pieces(fold.shares), call.signature.dtype
        rows = {self._rank: pieces.reshape(counts[self._rank], -1)}
        if self._arena is None:
            return rows
        pool = self._arena.arena.pool
        location = pool.locate(pieces)
        shared = None if fold.is_scattered else pool.locate_shared(target)
        if len(target) and (location is None or not (shared or fold.is_scattered)):
            out = "" if fold.is_scattered else ", and out from group.allocate(..., shared=True)"
            raise ConfigError(f"pieces come from group.allocate(...){out}")
        agreement = self._arena.open(call, location, shared, is_patient=True)
        for index, (rank, post) in enumerate(zip(self._neighbours, agreement.posts, strict=True)):
            if rank != self._rank:
                length = counts[rank] * len(target)
                rows[rank] = self._arena.read(index, post, length, dtype).reshape(counts[rank], -1)
        return rows

    def _show_source(
        self, arena: ArenaRunner, call: Call, source: Array, target: Array, others: Sequence[slice]
    ) -> tuple[list[Array], Array | None]:
        """Begin an all-reduce in the arena: return the sources of this host's ranks, and the place of the result.

        That is None if all of them have the same target.
        """
        pool, dtype = arena.arena.pool, call.signature.dtype
        location = pool.locate(source)
        if location is None:
            if len(self._shown) < source.nbytes:
                self._shown = pool.allocate(source.nbytes)
            shown = self._shown[: source.nbytes].view(dtype.numpy)
            for part in others:  # what this rank folds itself, nobody else needs to see
                np.copyto(shown[part], source[part])
            location = pool.locate(shown)
        agreement = arena.open(call, location, pool.locate_shared(target))
        sources = [
            source if rank == self._rank else arena.read(index, post, len(source), dtype)
            for index, (rank, post) in enumerate(zip(self._neighbours, agreement.posts, strict=True))
        ]
        if agreement.is_target_shared:
            return sources, None
        if len(self._shared) < source.nbytes:
            self._shared = arena.allocate(call, source.nbytes)
        return sources, self._shared[: source.nbytes].view(dtype.numpy)


class _ArrayReduction:
    """How the buffers of all ranks become one: each host folds its ranks' first, unless every host has only one.

    Then accumulators travel, and the result is divided and rounded by the rank that adds it up. Results are written
    into the own target, and into ``shared`` for the other ranks of the host.
    """

    def __init__(
        self,
        topology: Topology,
        host: int,
        sources: Sequence[Array],
        target: Array,
        shared: Array | None,
        op: ReduceOp,
        dtype: DType,
        wire: DType | None,
    ) -> None:
        self._topology, self._host = topology, host
        self._sources, self._target, self._shared = sources, target, shared
        self._op, self._dtype, self._wire = op, dtype, wire
        self._partial = ReduceOp.SUM if op.is_mean else op
        self._is_flat = topology.is_flat
        self._kind = wire or (dtype if self._is_flat else dtype.accumulator)
        self.result_itemsize = (wire or dtype).itemsize

    def contribution_bytes(self, host: int) -> int:  # noqa: ARG002 - all contribute alike
        """Return how many bytes a host contributes for each element."""
        return self._kind.itemsize

    def contribute(self, chunk: Chunk, scratch: Array) -> list[Array]:
        """Return this host's ranks' buffers, folded."""
        own = [source[chunk.span] for source in self._sources]
        out = scratch[: chunk.length * self._kind.itemsize].view(self._kind.numpy)
        if self._wire:
            wide = own[0]
            if len(own) > 1:
                wide = np.empty(chunk.length, np.float32)
                accumulate(self._op, self._dtype, own, wide)
            round_to_bf16(wide, out)
        elif len(own) == 1 and self._kind is self._dtype:
            return own
        else:
            accumulate(self._op, self._dtype, own, out)
        return [out]

    def add_up(self, chunk: Chunk, contributions: Mapping[int, Array]) -> Array:
        """Fold the contributions of all hosts in the order of hosts."""
        own = self.contribute(chunk, np.empty(chunk.length * self._kind.itemsize, np.uint8))[0]
        by_host = {host: each.view(self._kind.numpy) for host, each in contributions.items()}
        inputs = [own if host == self._host else by_host[host] for host in range(len(self._topology.hosts))]
        out = self._target[chunk.span]
        result = out
        if self._wire:
            wide, result = np.empty(chunk.length, np.float32), np.empty(chunk.length, np.uint16)
            accumulate(self._partial, self._wire, inputs, wide)
            finish(self._op, self._wire, wide, self._topology.size, result)
            widen_bf16(result, out)
        elif self._is_flat:
            fold(self._op, self._dtype, inputs, out)
        else:
            wide = np.empty(chunk.length, self._kind.numpy) if self._dtype.is_narrow else out
            fold(self._partial, self._kind, inputs, wide)
            finish(self._op, self._dtype, wide, self._topology.size, out)
        self._share(chunk)
        return result

    def place(self, chunk: Chunk) -> Array | None:
        """Return the place of a result, unless it arrives rounded."""
        return None if self._wire else self._target[chunk.span]

    def store(self, chunk: Chunk, received: Array) -> None:
        """Widen a result that was rounded, and share it."""
        if self._wire:
            widen_bf16(received.view(np.uint16), self._target[chunk.span])
        self._share(chunk)

    def _share(self, chunk: Chunk) -> None:
        if self._shared is not None:
            np.copyto(self._shared[chunk.span], self._target[chunk.span])


class _Copy:
    """A reduction in which nobody contributes anything: what the owner has is the result."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.result_itemsize = array.itemsize

    def contribution_bytes(self, host: int) -> int:  # noqa: ARG002 - none does
        """Return 0."""
        return 0

    def contribute(self, chunk: Chunk, scratch: Array) -> list[Array]:  # noqa: ARG002 - never asked for
        """Return nothing."""
        return []

    def add_up(self, chunk: Chunk, contributions: Mapping[int, Array]) -> Array:  # noqa: ARG002 - there are none
        """Return the owner's elements."""
        return self._array[chunk.span]

    def place(self, chunk: Chunk) -> Array:
        """Return the place of the elements."""
        return self._array[chunk.span]

    def store(self, chunk: Chunk, received: Array) -> None:
        """Leave them there."""
