"""Carrying out plans over links: all sends and receives of a round at once, in bounded chunks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, as_bytes
from phalanx.collectives import direct, tree
from phalanx.collectives.call import Call
from phalanx.collectives.flow import Fold, Folding, Incoming, Outgoing, Sink, Store
from phalanx.collectives.plan import Plan, Receive, Round, Send, Then, length_of
from phalanx.collectives.sender import Sender
from phalanx.errors import ConnectError, DeadlineExceeded
from phalanx.transport import Deadline, Epoch, LazyLink, Link, Wait, Waitable, wait_for_links
from phalanx.wire import HEADER_BYTES, Collective, Header, Kind, Signature, Tag

_SUSPECT_S = 1.0
"""How long a rank waits before it asks whether everybody is in the same call."""

_SENDER_BYTES = 1 << 20
"""From this size on it pays to hand over to another thread."""

_EMPTY_BY_PLAN = (Collective.BARRIER, Collective.SEND)
"""Their plans have messages without content; all others leave such messages out."""


class LinkRunner:
    """Carries out the plans of one rank over its links, and counts what that cost."""

    def __init__(
        self, rank: int, links: Mapping[int, Link], epoch: Epoch, name: int, *, has_two_cpus: bool = False
    ) -> None:
        self.rank = rank
        self._name = name  # what the world calls this rank; a link's peer has the world's name too
        self.links = links
        self.epoch = epoch
        self.bytes_sent = 0
        self.bytes_received = 0
        self.waited_s = {link.peer: 0.0 for link in links.values()}
        self._has_two_cpus = has_two_cpus
        self._sender: Sender | None = None
        self._scratch: dict[tuple[int, str], Array] = {}
        self._unmade = {peer: link for peer, link in links.items() if isinstance(link, LazyLink)}

    def run(
        self, plan: Plan, call: Call, source: Array, target: Array, dtype: DType, op: ReduceOp | None = None
    ) -> None:
        """Follow ``plan`` to its end. ``source`` and ``target`` are flat and contiguous, and may be the same.

        ``dtype`` is what their elements are, which differs from the call's where sums travel wider or narrower. After
        an error the target's content is undefined and the links are of no further use.
        """
        if call.signature.count == 0 and call.signature.collective not in _EMPTY_BY_PLAN:
            plan = direct.barrier(self.rank, len(self.links) + 1)  # ranks that have something must notice
        for number, planned in enumerate(plan.rounds):
            peers = [send.peer for send in planned.sends] + [receive.peer for receive in planned.receives]
            self.make_links(peers, call)
            tag = Tag(self.epoch.number, call.sequence, number)
            outgoing = self._outgoing(planned, tag, call, source)
            sinks = self._stores(planned, tag, call, target)
            if op is not None:
                leaving = planned.sends if source is target else ()
                sinks += self._folds(planned, tag, call, target, Folding(op, dtype, len(self.links) + 1), leaving)
            self.move(outgoing, sinks, call)

    def make_links(self, peers: Sequence[int], call: Call) -> None:
        """Make the links to ``peers`` that were never needed before.

        Lower ranks come first: those are dialled, which never has to wait for what the peer does. So no two ranks
        can block each other.
        """
        needed = self._unmade.keys() & peers if self._unmade else ()
        for link in sorted([self._unmade.pop(peer) for peer in needed], key=lambda link: link.peer):
            if not link.is_made:
                self._make_link(link, call)

    def _make_link(self, link: LazyLink, call: Call) -> None:
        with self._waiting((link.peer,), call):
            try:
                link.make(min(Deadline.after(_SUSPECT_S), call.deadline, key=_moment))
            except ConnectError:
                self.epoch.suspect_mismatch()  # a peer that is in another call may not need this link
                try:
                    link.make(call.deadline)
                except ConnectError as error:
                    words = f"rank {link.peer} did not come to {call} within {call.deadline.seconds:g} s: {error}"
                    raise DeadlineExceeded(words, peer=link.peer) from error

    def _outgoing(self, planned: Round, tag: Tag, call: Call, source: Array) -> list[Outgoing]:
        outgoing = []
        for send in planned.sends:
            payload = as_bytes(source[send.part])
            leaving = Outgoing(self.links[send.peer])
            leaving.put(self.announce(tag, call, len(payload)), payload)
            leaving.end()
            outgoing.append(leaving)
        return outgoing

    def _stores(self, planned: Round, tag: Tag, call: Call, target: Array) -> list[Sink]:
        return [
            Store(self._incoming(receive, tag, call, target), target[receive.part])
            for receive in planned.receives
            if receive.then is Then.STORE
        ]

    def _folds(
        self, planned: Round, tag: Tag, call: Call, target: Array, folding: Folding, leaving: Sequence[Send]
    ) -> list[Sink]:
        folded = [receive for receive in planned.receives if receive.then is Then.FOLD]
        folds: list[Sink] = []
        for part in {(receive.part.start, receive.part.stop): receive.part for receive in folded}.values():
            contributions = {
                receive.peer: self._incoming(receive, tag, call, target) for receive in folded if receive.part == part
            }
            combine = folding.finish if planned.finish == part else folding.combine
            is_leaving = any(_overlap(send.part, part) for send in leaving)
            folds.append(Fold(contributions, self.rank, target[part], combine, is_leaving=is_leaving))
        return folds

    def _incoming(self, receive: Receive, tag: Tag, call: Call, target: Array) -> Incoming:
        return self.expect(receive.peer, tag, call, length_of(receive.part) * target.itemsize)

    def announce(self, tag: Tag, call: Call, length: int) -> memoryview:
        """Return the header of a message of ``length`` bytes that is going to be sent, and count it."""
        self.bytes_sent += HEADER_BYTES + length
        return memoryview(Header(Kind.DATA, tag, call.signature, length).pack())

    def expect(self, peer: int, tag: Tag, call: Call, length: int) -> Incoming:
        """Return a message of ``length`` bytes that is going to come from ``peer``, and count it."""
        self.bytes_received += HEADER_BYTES + length
        return Incoming(self.links[peer], self._name, call, Header(Kind.DATA, tag, call.signature, length))

    def scratch(self, peer: int, use: str, size_bytes: int) -> Array:
        """Return memory for something that is done again and again with a peer; it holds what it held before."""
        found = self._scratch.get((peer, use))
        if found is None or len(found) < size_bytes:
            found = self._scratch[peer, use] = np.empty(size_bytes, np.uint8)
        return found

    def move(self, outgoing: Sequence[Outgoing], sinks: Sequence[Sink], call: Call) -> None:
        """Move everything, waiting only when no link can go on. A sink may put more into what is outgoing."""
        sender = self._choose_sender(outgoing, call)
        if sender is None:
            self._move(outgoing, sinks, call)
        else:
            with sender.sending(outgoing, call.deadline):
                self._move(outgoing, sinks, call, sender)

    def close(self) -> None:
        """Close the links. Closing twice is harmless."""
        for link in self.links.values():
            link.close()
        if self._sender:
            self._sender.close()

    def _choose_sender(self, outgoing: Sequence[Outgoing], call: Call) -> Sender | None:
        """Return who sends in a thread of its own, or None where that would cost more than it gains."""
        if not self._has_two_cpus or call.signature.count * call.signature.dtype.itemsize < _SENDER_BYTES:
            return None
        if not all(each.link.is_duplex for each in outgoing):
            return None
        if self._sender is None:
            self._sender = Sender(self.epoch)
        return self._sender

    def _move(
        self, outgoing: Sequence[Outgoing], sinks: Sequence[Sink], call: Call, sender: Sender | None = None
    ) -> None:
        while outgoing or sinks:
            if call.deadline.has_passed:  # a peer that trickles must not hold us for ever
                hungry = [each.link.peer for sink in sinks for each in sink.hungry]
                self._give_up(hungry or [outgoing[0].link.peer], call)
            has_advanced = False
            if sender:
                sender.check()
            else:
                for each in outgoing:
                    has_advanced |= each.advance()
            outgoing = [each for each in outgoing if not each.is_done]
            puts = sum(each.puts for each in outgoing) if sender else 0
            for sink in sinks:
                has_advanced |= sink.advance(may_write=not outgoing)
            sinks = [sink for sink in sinks if not sink.is_done]
            if sender and sum(each.puts for each in outgoing) > puts:
                sender.wake()
            if not has_advanced and (outgoing or sinks):
                sending = outgoing if sender else [each for each in outgoing if each.waiting]
                self._wait(sending, [each for sink in sinks for each in sink.hungry], call, sender)

    def _wait(
        self, sending: Sequence[Outgoing], receiving: Sequence[Incoming], call: Call, sender: Sender | None
    ) -> None:
        """Wait until one of the messages can go on, and unblock those of which bytes have arrived."""
        waiting_for = tuple(each.link.peer for each in (receiving or sending))
        full = [] if sender else [each.link for each in sending]
        missing: dict[Waitable, int] = {each.link: each.missing for each in receiving}
        if sender:
            missing[sender.has_sent] = 1
        with self._waiting(waiting_for, call):
            doubt = Deadline.after(_SUSPECT_S)
            ready = wait_for_links(full, missing, min(doubt, call.deadline, key=_moment), self.epoch)
            if not ready:
                self.epoch.suspect_mismatch()  # two ranks that both wait to receive would never learn of it
                ready = wait_for_links(full, missing, call.deadline, self.epoch)
                if not ready:
                    self._give_up(waiting_for, call)
            came = tuple(each.link.peer for each in receiving if each.link in ready)
            if came and came != waiting_for:
                self.epoch.begin_wait(Wait(came, call, call.group, call.sequence))  # the wait that ends was for these
        for each in receiving:
            if each.link in ready:
                each.is_blocked = False

    @contextmanager
    def _waiting(self, peers: tuple[int, ...], call: Call) -> Iterator[None]:
        """Say whom this rank waits for, and count how long. After an error the wait stays on record."""
        self.epoch.begin_wait(Wait(peers, call, call.group, call.sequence))
        began = time.perf_counter()
        yield
        self.epoch.end_wait()
        elapsed = time.perf_counter() - began
        for peer in peers:
            self.waited_s[peer] += elapsed

    def _give_up(self, late: Sequence[int], call: Call) -> NoReturn:
        names = " and ".join(f"rank {peer}" for peer in late)
        words = f"{names} did not go on with {call} within {call.deadline.seconds:g} s"
        raise DeadlineExceeded(words, peer=late[0])


def tell_all(runner: LinkRunner, words: Array, deadline: Deadline) -> Array:
    """Return the words of every rank, by rank, for setting up: that is call 0, so people's own calls begin at 1.

    A table, all rows but the own one zero, is added up along a tree, so that few links have to be made.
    """
    size = len(runner.links) + 1
    table = np.zeros((size, len(words)), np.int64)
    table[runner.rank] = words
    flat = table.reshape(-1)
    call = Call(Signature(Collective.ALL_REDUCE, DType.I64, len(flat), ReduceOp.SUM), 0, deadline)
    runner.run(tree.all_reduce(runner.rank, size, len(flat)), call, flat, flat, DType.I64, ReduceOp.SUM)
    return table


def _moment(deadline: Deadline) -> float:
    return deadline.at


def _overlap(left: slice, right: slice) -> bool:
    return bool(left.start < right.stop and right.start < left.stop)
