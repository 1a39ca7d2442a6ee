"""An all-reduce of several hosts with several ranks: in the arena of each host, and over links between hosts."""

from collections.abc import Mapping

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, accumulate, even_parts, finish, round_to_bf16, widen_bf16
from phalanx.collectives import direct
from phalanx.collectives.call import Call
from phalanx.collectives.choose import Topology
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.shared import ArenaRunner
from phalanx.transport import Epoch, Link


class Layered:
    """One rank's side: the arena of its host, if others share it, and its links to those who stand for it elsewhere.

    ``links`` lead to the ranks that have this rank's number on the other hosts, if every host has one.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        links: Mapping[int, Link],
        arena: ArenaRunner | None,
        epoch: Epoch,
        name: int,
    ) -> None:
        own_host = topology.host_of(rank)
        self._topology = topology
        self._position = own_host.index(rank)
        self._fewest = min(map(len, topology.hosts))
        self._arena = arena
        self.links: LinkRunner | None = None
        if self._position < self._fewest:
            hosts = enumerate(topology.hosts)
            others = {number: links[host[self._position]] for number, host in hosts if host != own_host}
            self.links = LinkRunner(topology.hosts.index(own_host), others, epoch, name)

    def all_reduce(self, call: Call, source: Array, target: Array, op: ReduceOp, wire: DType | None) -> None:
        """Fold part r on the host's rank r, exchange it with the other hosts' ranks r, and read all parts here."""
        dtype = call.signature.dtype
        parts = even_parts(len(source), self._fewest)
        part = parts[self._position] if self._position < self._fewest else slice(0, 0)
        folded = np.empty(part.stop - part.start, dtype.accumulator.numpy)
        if self._arena:
            self._arena.reduce_parts(call, source, parts, folded, op, dtype, is_partial=True)
        else:
            accumulate(op, dtype, [source], folded)
        if self.links:
            self._exchange(self.links, call, folded, op, wire)
        finished = np.empty(len(folded), dtype.numpy)
        finish(op, dtype, folded, self._topology.size, finished)
        if not self._arena:
            np.copyto(target, finished)
            return
        cuts = [(slice(0, each.stop - each.start),) for each in parts] + [()] * (self._arena.arena.size - len(parts))
        wanted = [(number, 0, target[each]) for number, each in enumerate(parts)]
        self._arena.exchange(call, finished, cuts, wanted, dtype)

    def _exchange(self, links: LinkRunner, call: Call, folded: Array, op: ReduceOp, wire: DType | None) -> None:
        dtype = call.signature.dtype.accumulator
        partial = ReduceOp.SUM if op is ReduceOp.MEAN else op
        plan = direct.all_reduce(links.rank, even_parts(len(folded), len(self._topology.hosts)))
        travels = folded
        if wire is not None:
            travels = np.empty(len(folded), np.uint16)
            round_to_bf16(folded, travels)
            dtype = wire
        links.run(plan, call, travels, travels, dtype, partial)
        if wire is not None:
            widen_bf16(travels, folded)
