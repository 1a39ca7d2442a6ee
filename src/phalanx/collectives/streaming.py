"""Contributions to the ranks that add them up, and results back, chunk by chunk, so that no link idles meanwhile.

Every two ranks that have to do with each other exchange two messages in each direction: first the contributions to what
the other adds up, then the results of what this rank adds up. A rank adds up a chunk as soon as all contributions to it
have arrived, and sends its result on at once, while others still arrive.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from phalanx.buffers import CHUNK, Array, as_bytes, slices
from phalanx.collectives.call import Call
from phalanx.collectives.flow import Incoming, Outgoing
from phalanx.collectives.plan import length_of
from phalanx.collectives.run import LinkRunner
from phalanx.collectives.topology import Topology, stand_ins
from phalanx.wire import Tag

_AHEAD_BYTES = 1 << 20
"""How far a peer may be ahead of what is added up, and this rank of what has left: so much is kept for each."""

_PART_CHUNK = 4 * CHUNK
"""The most elements of a chunk of an array: over fast links, chunks that fit the cache cost more than they gain."""

_LINE_BYTES = 64  # what is kept begins at the start of a cache line


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements that are added up and sent at a time; where there are blocks, adjacent ones with these ``numbers``."""

    span: slice
    numbers: Sequence[int] = ()

    @property
    def length(self) -> int:
        """The number of its elements."""
        return length_of(self.span)


class Reduction(Protocol):
    """How the contributions of all hosts to a chunk become its result."""

    result_itemsize: int
    """The bytes of an element of a result on its way."""

    def contribution_bytes(self, host: int) -> int:
        """Return how many bytes a host contributes for each element."""

    def contribute(self, chunk: Chunk, scratch: Array) -> Sequence[Array]:
        """Return what this host contributes to a chunk, one array after another; ``scratch`` has room for all of it."""

    def add_up(self, chunk: Chunk, contributions: Mapping[int, Array]) -> Array:
        """Make the result from this host's contribution and the bytes from the others, and return what is sent."""

    def place(self, chunk: Chunk) -> Array | None:
        """Return where the result of a chunk that another rank adds up is received; None if it needs scratch."""

    def store(self, chunk: Chunk, received: Array) -> None:
        """Take a result that has been received."""


def cut_chunks(blocks: Sequence[slice], owners: Sequence[int], size: int) -> list[list[Chunk]]:
    """Return the chunks that each rank adds up: its adjacent blocks together, as long as they are short."""
    spans: list[list[slice]] = [[] for _ in range(size)]
    numbers: list[list[list[int]]] = [[] for _ in range(size)]
    for number, (block, owner) in enumerate(zip(blocks, owners, strict=True)):
        found = spans[owner]
        if found and found[-1].stop == block.start and block.stop - found[-1].start <= CHUNK:
            found[-1] = slice(found[-1].start, block.stop)
            numbers[owner][-1].append(number)
        else:
            found.append(block)
            numbers[owner].append([number])
    return [list(map(Chunk, *each)) for each in zip(spans, numbers, strict=True)]


def cut_parts(parts: Sequence[slice]) -> list[list[Chunk]]:
    """Return the chunks that each rank adds up, if its part is one slice."""
    return [[Chunk(span) for span in slices(part, _PART_CHUNK)] for part in parts]


class IncomingChunks:
    """A message that arrives chunk by chunk.

    ``open(number)`` returns where chunk ``number`` shall go, or None as long as there is no room; ``take(number)`` is
    called when it is there.
    """

    def __init__(
        self,
        incoming: Incoming,
        count: int,
        open_: Callable[[int], memoryview | None],
        take: Callable[[int], None],
    ) -> None:
        self.arrived = 0
        self.incoming, self._count = incoming, count
        self._open, self._take = open_, take
        self.is_hungry = False

    @property
    def is_done(self) -> bool:
        """Whether all chunks are there."""
        return self.arrived == self._count

    def advance(self) -> bool:
        """Take what has come; False if nothing has, or there is no room."""
        has_advanced = False
        while not self.is_done:
            if not self.is_hungry:
                window = self._open(self.arrived)
                if window is None:
                    break
                self.incoming.fill(window)
                self.is_hungry = True
            if not self.incoming.advance():
                break
            has_advanced = True
            if self.incoming.is_full:
                self.is_hungry = False
                self._take(self.arrived)
                self.arrived += 1
        return has_advanced


class _Side:
    """One peer of a stream.

    ``theirs`` are chunks that the peer adds up and to which this rank sends what its host contributes. If the peer
    ``is_stand_in`` for this rank, it does the same for what this rank adds up.
    """

    def __init__(self, peer: int, host: int, theirs: Sequence[Chunk], *, is_stand_in: bool) -> None:
        self.peer, self.host, self.theirs, self.is_stand_in = peer, host, theirs, is_stand_in
        self.contributed = 0
        self.returned = 0
        self.has_ended = False
        self.arrivals: list[IncomingChunks] = []
        self.contributions: IncomingChunks | None = None


class Streaming:
    """All messages of a call between hosts, as a sink that also fills what is outgoing."""

    def __init__(
        self,
        runner: LinkRunner,
        topology: Topology,
        call: Call,
        chunks: Sequence[Sequence[Chunk]],
        reduction: Reduction,
        *,
        is_scattered: bool = False,
        first_round: int = 0,
    ) -> None:
        self._runner, self._call, self._reduction = runner, call, reduction
        self._own = chunks[runner.rank]
        self._is_scattered = is_scattered
        self._tags = [Tag(runner.epoch.number, call.sequence, first_round + number) for number in range(2)]
        self._results: list[memoryview] = []
        self._sides = _list_sides(runner.rank, topology, chunks)
        self._own_host = topology.number_of_host(runner.rank)
        self._longest = max((chunk.length for owned in chunks for chunk in owned), default=0)
        runner.make_links([side.peer for side in self._sides], call)
        self._outgoing = {side.peer: Outgoing(runner.links[side.peer]) for side in self._sides}
        for side in self._sides:
            self._expect(side)

    def run(self) -> None:
        """Move everything."""
        self._runner.move(list(self._outgoing.values()), [self], self._call)

    # As a sink

    @property
    def is_done(self) -> bool:
        """Whether all results are there, and all that is to be sent has been put out."""
        return len(self._results) == len(self._own) and all(
            side.has_ended and not side.arrivals for side in self._sides
        )

    @property
    def hungry(self) -> list[Incoming]:
        """The messages of which bytes are missing."""
        return [side.arrivals[0].incoming for side in self._sides if side.arrivals and side.arrivals[0].is_hungry]

    def advance(self, *, may_write: bool) -> bool:  # noqa: ARG002 - a result only replaces what has left
        """Receive, add up, and put out what can be; a chunk a peer at most, so that links get their turn."""
        has_advanced = False
        for side in self._sides:
            if side.arrivals and not side.arrivals[0].incoming.is_blocked:
                has_advanced |= self._receive(side)
        has_advanced |= self._add_up()
        for side in self._sides:
            if not side.has_ended:
                has_advanced |= self._send(side)
        return has_advanced

    # Receiving

    def _expect(self, side: _Side) -> None:
        """Prepare for both messages of a peer; those without content do not come."""
        size = self._reduction.contribution_bytes(side.host)
        if side.is_stand_in and size:
            length = size * sum(chunk.length for chunk in self._own)
            incoming = self._runner.expect(side.peer, self._tags[0], self._call, length)
            open_ = partial(self._open_contribution, side)
            side.contributions = IncomingChunks(incoming, len(self._own), open_, lambda _: None)
            side.arrivals.append(side.contributions)
        if side.theirs and not self._is_scattered:
            length = self._reduction.result_itemsize * sum(chunk.length for chunk in side.theirs)
            incoming = self._runner.expect(side.peer, self._tags[1], self._call, length)
            side.arrivals.append(
                IncomingChunks(
                    incoming, len(side.theirs), partial(self._open_result, side), partial(self._take_result, side)
                )
            )

    def _receive(self, side: _Side) -> bool:
        has_advanced = False
        while side.arrivals:
            has_advanced |= side.arrivals[0].advance()
            if not side.arrivals[0].is_done:
                break
            side.arrivals.pop(0)
        return has_advanced

    def _open_contribution(self, side: _Side, number: int) -> memoryview | None:
        if number - len(self._results) >= self._ahead(self._reduction.contribution_bytes(side.host)):
            return None
        return as_bytes(self._contribution(side, number))

    def _contribution(self, side: _Side, number: int) -> Array:
        size = self._reduction.contribution_bytes(side.host)
        return self._slot(side, "contributions", size, number)[: size * self._own[number].length]

    def _open_result(self, side: _Side, number: int) -> memoryview:
        return as_bytes(self._received(side, number))

    def _take_result(self, side: _Side, number: int) -> None:
        self._reduction.store(side.theirs[number], self._received(side, number))

    def _received(self, side: _Side, number: int) -> Array:
        chunk, size = side.theirs[number], self._reduction.result_itemsize
        place = self._reduction.place(chunk)
        return self._slot(side, "results", size, 0)[: size * chunk.length] if place is None else place

    # Adding up and sending

    def _add_up(self) -> bool:
        done = 0
        while done < CHUNK and len(self._results) < self._arrived():
            number = len(self._results)
            contributions = {side.host: self._contribution(side, number) for side in self._sides if side.contributions}
            self._results.append(as_bytes(self._reduction.add_up(self._own[number], contributions)))
            done += self._own[number].length
        return done > 0

    def _arrived(self) -> int:
        """Return how many of the own chunks all others have contributed to."""
        arrived = [side.contributions.arrived for side in self._sides if side.contributions]
        return min(arrived, default=len(self._own))

    def _send(self, side: _Side) -> bool:
        outgoing = self._outgoing[side.peer]
        size = self._reduction.contribution_bytes(self._own_host)
        if size and side.contributed < len(side.theirs):
            return self._send_contributions(side, outgoing, size)
        if side.returned < (len(self._own) if side.is_stand_in and not self._is_scattered else 0):
            return self._send_results(side, outgoing)
        if side.has_ended:
            return False
        outgoing.end()
        side.has_ended = True
        return True

    def _send_contributions(self, side: _Side, outgoing: Outgoing, size: int) -> bool:
        """Put out what this host contributes to the peer's next chunks."""
        done = 0
        while done < CHUNK and side.contributed < len(side.theirs) and outgoing.waiting < self._ahead(size):
            chunk = side.theirs[side.contributed]
            arrays = self._reduction.contribute(chunk, self._slot(side, "sending", size, side.contributed))
            parts = [as_bytes(each) for each in arrays]
            if side.contributed == 0:
                length = size * sum(each.length for each in side.theirs)
                parts.insert(0, self._runner.announce(self._tags[0], self._call, length))
            outgoing.put(*parts)
            side.contributed += 1
            done += chunk.length
        return done > 0

    def _send_results(self, side: _Side, outgoing: Outgoing) -> bool:
        """Put out all results that are there."""
        ready = self._results[side.returned :]
        for number, result in enumerate(ready, side.returned):
            if number:
                outgoing.put(result)
            else:
                length = self._reduction.result_itemsize * sum(chunk.length for chunk in self._own)
                outgoing.put(self._runner.announce(self._tags[1], self._call, length), result)
        side.returned += len(ready)
        return bool(ready)

    def _ahead(self, size: int) -> int:
        """Return how many chunks with ``size`` bytes for each element are kept."""
        return max(2, _AHEAD_BYTES // (size * self._longest))

    def _slot(self, side: _Side, use: str, size: int, number: int) -> Array:
        """Return memory for one of the chunks that are kept for a peer."""
        ahead = min(self._ahead(size), max(len(self._own), len(side.theirs)))
        length = -(-size * self._longest // _LINE_BYTES) * _LINE_BYTES
        start = number % ahead * length
        return self._runner.scratch(side.peer, use, ahead * length)[start : start + length]


def _list_sides(rank: int, topology: Topology, chunks: Sequence[Sequence[Chunk]]) -> list[_Side]:
    """Return the peers on other hosts with which ``rank`` has something to exchange, from the next host on."""
    table, own_host = stand_ins(topology), topology.number_of_host(rank)
    sides = []
    for distance in range(1, len(topology.hosts)):
        number = (own_host + distance) % len(topology.hosts)
        for peer in topology.hosts[number]:
            theirs = chunks[peer] if table[own_host][peer] == rank else ()
            is_stand_in = table[number][rank] == peer and bool(chunks[rank])
            if theirs or is_stand_in:
                sides.append(_Side(peer, number, theirs, is_stand_in=is_stand_in))
    return sides
