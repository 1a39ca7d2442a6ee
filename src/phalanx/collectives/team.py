"""One rank with its links and its arena: it picks the way for each collective and carries it out."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, consecutive, even_parts, finish, widen
from phalanx.collectives import direct, pair, ring, tree
from phalanx.collectives.call import Call
from phalanx.collectives.choose import Algorithm, Choice, choose
from phalanx.collectives.lanes import LaneFold
from phalanx.collectives.layered import SMALL_BYTES, Layered
from phalanx.collectives.plan import Plan, Receive, Round, Send
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.shared import ArenaRunner
from phalanx.collectives.tagged import TaggedMessages
from phalanx.collectives.topology import Topology
from phalanx.transport import Arena, Epoch, Link, allocate_pages
from phalanx.wire import Collective

_CARRIES_PARTIAL_SUMS = (Algorithm.RING, Algorithm.TREE)


class Team:
    """One rank's view of a group that can act: its links, and the arena if it shares memory with other ranks.

    ``names`` has the rank of each member in the world, for errors and statistics. Buffers are flat and contiguous.
    After an error a team cannot be used any more, because messages may have ended in the middle. A team ``is_crowded``
    if all its ranks are on one machine that has less than two CPUs for each; all ranks must say the same.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[int],
        topology: Topology,
        links: Mapping[int, Link],
        outbound: Mapping[int, Link],
        inbound: Mapping[int, Link],
        arena: Arena | None,
        epoch: Epoch,
        tagged: TaggedMessages,
        *,
        has_two_cpus: bool = False,
        is_crowded: bool = False,
    ) -> None:
        self._is_crowded = is_crowded
        self.tagged = tagged
        self.rank = rank
        self.names = names
        self.size = topology.size
        self.topology = topology
        self.epoch = epoch
        self.links = LinkRunner(rank, links, epoch, names[rank], has_two_cpus=has_two_cpus)
        # What goes to or comes from a single peer has links of its own, since it may wait while a collective runs.
        self._outbound = {peer: LinkRunner(rank, {peer: link}, epoch, names[rank]) for peer, link in outbound.items()}
        self._inbound = {peer: LinkRunner(rank, {peer: link}, epoch, names[rank]) for peer, link in inbound.items()}
        self.arena = ArenaRunner(arena, epoch) if arena else None
        self._in_arena = self.arena if topology.is_one_host else None  # then links have nothing to do
        self._layered = Layered(topology, self.links, self.arena)

    def watch(self, on_death: Callable[[int], None]) -> None:
        """From now on, call ``on_death`` with the number of a rank of this host whose process has died.

        This may not notice every death: the ranks watch each other in a circle. The coordinator notices all of them.
        """
        if self.arena:
            self.arena.arena.watch(on_death)

    def choose(self, collective: Collective, nbytes: int) -> Choice:
        """Return how a collective over ``nbytes`` would be carried out, and why."""
        return choose(collective, nbytes, self.topology)

    def all_reduce(self, call: Call, source: Array, target: Array, wire: DType | None = None) -> None:
        """Write the reduction of all sources into every target; ``wire`` is the type that crosses links."""
        if self._in_arena:
            self._in_arena.all_reduce(call, source, target, _op(call), call.signature.dtype)
            return
        algorithm = self._algorithm(call)
        # In a crowd, a rank that streams wakes more often, and there is no line that it could keep busy.
        is_streamed = algorithm is Algorithm.DIRECT and (source.nbytes <= SMALL_BYTES or not self._is_crowded)
        if algorithm is Algorithm.LAYERED or is_streamed or wire is not None:
            self._layered.all_reduce(call, source, target, _op(call), wire)
        else:
            self._reduce_over_links(call, self._all_reduce_plan(algorithm, len(source)), algorithm, source, target)

    def fold_lanes(self, call: Call, pieces: Array, target: Array, fold: LaneFold) -> None:
        """Write the sum of all lanes into every target, or, if blocks have owners, each block into its owner's target.

        ``pieces`` has the pieces of this rank, one after another.
        """
        self._layered.fold_lanes(call, pieces, target, fold)

    def reduce(self, call: Call, source: Array, target: Array | None) -> None:
        """Write the reduction of all sources into the root's target; the others have none."""
        if self._in_arena:
            self._in_arena.reduce(call, source, target, _op(call), call.signature.dtype)
            return
        algorithm, root = self._algorithm(call), call.signature.root or 0
        if algorithm is Algorithm.TREE:
            plan = tree.reduce(self.rank, self.size, root, len(source))
        else:
            plan = direct.reduce(self.rank, root, even_parts(len(source), self.size))
        out = np.empty_like(source) if target is None else target
        self._reduce_over_links(call, plan, algorithm, source, out)

    def reduce_scatter(self, call: Call, source: Array, parts: Sequence[slice], target: Array) -> None:
        """Write the reduction of ``parts[r]`` of all sources into the target of rank r."""
        if self._in_arena:
            self._in_arena.reduce_parts(call, source, parts, target, _op(call), call.signature.dtype)
            return
        algorithm = self._algorithm(call)
        make_plan = ring.reduce_scatter if algorithm is Algorithm.RING else direct.reduce_scatter
        whole = np.empty_like(source)
        self._reduce_over_links(call, make_plan(self.rank, parts), algorithm, source, whole)
        np.copyto(target, whole[parts[self.rank]])

    def all_gather(self, call: Call, source: Array, parts: Sequence[slice], target: Array) -> None:
        """Copy the source of rank r into ``parts[r]`` of every target."""
        if self._in_arena:
            whole = [(slice(0, part.stop - part.start),) for part in parts]
            wanted = [(rank, 0, target[part]) for rank, part in enumerate(parts)]
            self._in_arena.exchange(call, source, whole, wanted, call.signature.dtype)
            return
        np.copyto(target[parts[self.rank]], source)
        make_plan = ring.all_gather if self._algorithm(call) is Algorithm.RING else direct.all_gather
        self._run(make_plan(self.rank, parts), call, target, target)

    def broadcast(self, call: Call, buffer: Array) -> None:
        """Make every buffer equal to the root's."""
        root = call.signature.root or 0
        if self._in_arena:
            whole = [(slice(0, len(buffer)),) if rank == root else () for rank in range(self.size)]
            wanted = [] if self.rank == root else [(root, 0, buffer)]
            self._in_arena.exchange(call, buffer, whole, wanted, call.signature.dtype)
        else:
            self._run(tree.broadcast(self.rank, self.size, root, len(buffer)), call, buffer, buffer)

    def broadcast_blocks(self, call: Call, array: Array, blocks: Sequence[slice], owners: Sequence[int]) -> None:
        """Make each block of every array equal to its owner's."""
        self._layered.broadcast_blocks(call, array, blocks, owners)

    def gather(self, call: Call, source: Array, target: Array | None, lengths: Sequence[int] | None = None) -> None:
        """Put the sources, one after another, into the root's target; without ``lengths`` they are equally long."""
        root = call.signature.root or 0
        parts = consecutive([len(source)] * self.size if lengths is None else lengths)
        if self._in_arena:
            wanted = [] if target is None else [(rank, 0, target[part]) for rank, part in enumerate(parts)]
            whole = [(slice(0, part.stop - part.start),) for part in parts]
            self._in_arena.exchange(call, source, whole, wanted, call.signature.dtype)
            return
        if target is not None:
            np.copyto(target[parts[root]], source)
        self._run(direct.gather(self.rank, root, parts), call, source, source if target is None else target)

    def scatter(self, call: Call, source: Array | None, target: Array, lengths: Sequence[int] | None = None) -> None:
        """Cut the root's source into parts of these ``lengths``, or equal ones, and put part r into rank r's target."""
        root = call.signature.root or 0
        parts = consecutive([len(target)] * self.size if lengths is None else lengths)
        if self._in_arena:
            of_root = [parts if rank == root else () for rank in range(self.size)]
            self._in_arena.exchange(call, source, of_root, [(root, self.rank, target)], call.signature.dtype)
            return
        if source is not None:
            np.copyto(target, source[parts[root]])
        self._run(direct.scatter(self.rank, root, parts), call, target if source is None else source, target)

    def all_to_all(
        self, call: Call, source: Array, target: Array, lengths: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Copy part r of this rank's source into the target of rank r, to the part with this rank's number.

        ``lengths[s][r]`` is how much goes from rank s to rank r; without it, all parts are equally long.
        """
        if lengths is None:
            lengths = [[len(source) // self.size] * self.size] * self.size
        leaving = [consecutive(row) for row in lengths]
        arriving = consecutive(row[self.rank] for row in lengths)
        if self._in_arena:
            wanted = [(rank, self.rank, target[part]) for rank, part in enumerate(arriving)]
            self._in_arena.exchange(call, source, leaving, wanted, call.signature.dtype)
            return
        np.copyto(target[arriving[self.rank]], source[leaving[self.rank][self.rank]])
        self._run(direct.all_to_all(self.rank, leaving[self.rank], arriving), call, source, target)

    def barrier(self, call: Call) -> None:
        """Return when every rank has called this."""
        if self._in_arena:
            self._in_arena.barrier(call)
            return
        nothing = np.empty(0, np.uint8)
        make_plan = tree.barrier if self._algorithm(call) is Algorithm.TREE else direct.barrier
        self._run(make_plan(self.rank, self.size), call, nothing, nothing)

    def send(self, call: Call, source: Array, peer: int) -> None:
        """Send a buffer to one peer."""
        plan = Plan((Round(sends=(Send(peer, slice(0, len(source))),)),))
        self._outbound[peer].run(plan, call, source, source, call.signature.dtype)

    def receive(self, call: Call, target: Array, peer: int) -> None:
        """Receive a buffer from one peer."""
        plan = Plan((Round(receives=(Receive(peer, slice(0, len(target))),)),))
        self._inbound[peer].run(plan, call, target, target, call.signature.dtype)

    def allocate(self, call: Call, size_bytes: int) -> Array:
        """Return zeroed memory that the ranks of a host share, or ordinary memory if this rank has no arena."""
        return self.arena.allocate(call, size_bytes) if self.arena else allocate_pages(size_bytes)

    def allocate_own(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return a zeroed array of this rank that the other ranks of its host can read without a copy."""
        allocate = self.arena.arena.pool.allocate if self.arena else allocate_pages
        return allocate(math.prod(shape) * dtype.itemsize).view(dtype.numpy).reshape(shape)

    def counts(self) -> tuple[int, int, dict[int, float]]:
        """Return the bytes sent and received over links, and the seconds waited for each rank of the world."""
        runners = [self.links, *self._outbound.values(), *self._inbound.values()]
        waited: dict[int, float] = {}
        for seconds_by_rank in [runner.waited_s for runner in runners] + (
            [self.arena.arena.waited_s] if self.arena else []
        ):
            for rank, seconds in seconds_by_rank.items():
                waited[rank] = waited.get(rank, 0.0) + seconds
        return sum(each.bytes_sent for each in runners), sum(each.bytes_received for each in runners), waited

    def close(self) -> None:
        """Close the links and free the memory. Closing twice is harmless."""
        for runner in (self.links, *self._outbound.values(), *self._inbound.values()):
            runner.close()
        self.tagged.close()
        if self.arena:
            self.arena.arena.close()

    # Over links

    def _run(self, plan: Plan, call: Call, source: Array, target: Array) -> None:
        self.links.run(plan, call, source, target, call.signature.dtype, call.signature.op)

    def _reduce_over_links(self, call: Call, plan: Plan, algorithm: Algorithm, source: Array, target: Array) -> None:
        dtype = call.signature.dtype
        if dtype.is_narrow and algorithm in _CARRIES_PARTIAL_SUMS:
            wide = widen(dtype, source)
            self.links.run(plan, call, wide, wide, dtype.accumulator, call.signature.op)
            finish(ReduceOp.SUM, dtype, wide, self.size, target)
            return
        if source is not target:
            np.copyto(target, source)
        self._run(plan, call, target, target)

    def _all_reduce_plan(self, algorithm: Algorithm, length: int) -> Plan:
        match algorithm:
            case Algorithm.PAIR:
                return pair.all_reduce(self.rank, length)
            case Algorithm.DIRECT:
                return direct.all_reduce(self.rank, even_parts(length, self.size))
            case Algorithm.RING:
                return ring.all_reduce(self.rank, even_parts(length, self.size))
            case _:
                return tree.all_reduce(self.rank, self.size, length)

    def _algorithm(self, call: Call) -> Algorithm:
        signature = call.signature
        return self.choose(signature.collective, signature.count * signature.dtype.itemsize).algorithm


def _op(call: Call) -> ReduceOp:
    assert call.signature.op is not None, "a reduction has an op"
    return call.signature.op
