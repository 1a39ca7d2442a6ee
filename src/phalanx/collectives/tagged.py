"""Messages with tags between two ranks: a receiver chooses them by tag, in any order, and may take any source.

A message that nobody has asked for yet is read only while this rank waits for another one, and is then kept.
"""

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from phalanx.buffers import Array, as_bytes
from phalanx.collectives.call import Call
from phalanx.collectives.plan import Plan, Round, Send
from phalanx.collectives.run import LinkRunner
from phalanx.errors import CollectiveMismatch, ConnectError, DeadlineExceeded, LinkClosed, PeerLost, PhalanxError
from phalanx.transport import Bell, Deadline, Epoch, LazyLink, Pending, Wait, Waitable, wait_for_links
from phalanx.wire import HEADER_BYTES, Header

_LOOK_S = 0.002  # how often to look for a peer that has not connected yet
_AT_ONCE_S = 1e-6


@dataclass(eq=False, slots=True)
class _Expected:
    """A message that this rank waits for. The call's number is the tag."""

    source: int | None
    call: Call
    target: Array
    pending: Pending[int]

    def takes(self, peer: int, header: Header) -> bool:
        return self.source in (None, peer) and header.tag.sequence == self.call.sequence


class _Arriving:
    """What is on its way in from one peer: a header, then its payload."""

    def __init__(self, peer: int, link: LazyLink) -> None:
        self.peer = peer
        self.link = link
        self.lost: PhalanxError | None = None
        self.header: Header | None = None
        self.payload: Array | None = None  # of a message that nobody has asked for
        self.expected: _Expected | None = None
        self._bytes = bytearray(HEADER_BYTES)
        self.window = memoryview(self._bytes)

    @property
    def has_begun(self) -> bool:
        """Whether some of a message has arrived."""
        return self.header is not None or len(self.window) < HEADER_BYTES

    def read_header(self) -> Header:
        self.header = Header.unpack(bytes(self._bytes))
        return self.header

    def begin_next(self) -> None:
        self.header = self.payload = self.expected = None
        self.window = memoryview(self._bytes)


class TaggedMessages:
    """The messages with tags of one rank. A thread of its own receives while somebody waits for a message."""

    def __init__(
        self, rank: int, name: int, outbound: Mapping[int, LazyLink], inbound: Mapping[int, LazyLink], epoch: Epoch
    ) -> None:
        self._rank = rank
        self._name = name
        self._epoch = epoch
        self.outbound = {peer: LinkRunner(rank, {peer: link}, epoch, name) for peer, link in outbound.items()}
        self._arriving = {peer: _Arriving(peer, link) for peer, link in inbound.items()}
        self._expected: list[_Expected] = []
        self._kept: list[tuple[int, Header, Array]] = []
        self._lock = threading.Lock()
        self._bell: Bell | None = None
        self._thread: threading.Thread | None = None
        self._ended: BaseException | None = None  # why the thread has ended
        self._is_closing = False

    def send(self, call: Call, source: Array, peer: int) -> None:
        """Send a buffer to one peer; the call's number is the tag."""
        plan = Plan((Round(sends=(Send(peer, slice(0, len(source))),)),))
        self.outbound[peer].run(plan, call, source, source, call.signature.dtype)

    def receive(self, call: Call, target: Array, peer: int | None) -> Pending[int]:
        """Receive a buffer with the call's number as tag from ``peer``, or from any; the result is who has sent it."""
        expected = _Expected(peer, call, target, Pending(call))
        with self._lock:
            if self._is_closing:
                raise LinkClosed(f"this group was closed on this side before {call}")
            if self._ended is not None:
                raise copy.copy(self._ended)
            for kept in self._kept:
                source, header, payload = kept
                if expected.takes(source, header):
                    self._kept.remove(kept)
                    self._deliver(expected, source, header, payload)
                    return expected.pending
            self._expected.append(expected)
            if self._thread is None:
                self._bell = Bell()
                self._thread = threading.Thread(target=self._work, name=f"phalanx-receive-{self._rank}", daemon=True)
                self._thread.start()
            else:
                assert self._bell, "it is made with the thread"
                self._bell.ring()
        return expected.pending

    def close(self) -> None:
        """Stop receiving, and close the links. Closing twice is harmless."""
        with self._lock:
            has_rung, self._is_closing = self._is_closing, True
            if self._bell and not has_rung:
                self._bell.ring()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()
        if self._bell:
            self._bell.close()
        for runner in self.outbound.values():
            runner.close()
        for arriving in self._arriving.values():
            arriving.link.close()

    # In the thread

    def _work(self) -> None:
        assert self._bell, "it is made with the thread"
        error: BaseException = LinkClosed("this group was closed on this side")
        try:
            while not self._is_closing:
                self._step(self._bell)
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits
            error = raised
        with self._lock:
            self._ended = error
        self._fail(self._expected, error)
        self._epoch.end_wait()

    def _step(self, bell: Bell) -> None:
        """Receive what has arrived, or wait for more."""
        with self._lock:
            expected = self._expected[:]
        if not expected and not any(each.has_begun for each in self._arriving.values()):
            self._epoch.end_wait()
            wait_for_links([], {bell: 1}, Deadline.after(1_000_000), self._epoch)
            bell.silence()
            return
        self._give_up_late(expected)
        wanted = [each for each in self._arriving.values() if each.has_begun or _is_wanted(each, expected)]
        unmade = [each for each in wanted if not each.link.is_made and not self._make(each)]
        made = [each for each in wanted if each.link.is_made and each.lost is None]
        advanced = [self._advance(each) for each in made]
        if not any(advanced):
            self._wait(bell, made, unmade, expected)

    def _wait(self, bell: Bell, made: list[_Arriving], unmade: list[_Arriving], expected: list[_Expected]) -> None:
        until = min((each.call.deadline for each in expected), key=lambda deadline: deadline.at, default=None)
        limits = [deadline for deadline in (until, Deadline.after(_LOOK_S) if unmade else None) if deadline]
        limit = min(limits or [Deadline.after(1.0)], key=lambda deadline: deadline.at)
        if expected:
            first = expected[0]
            ranks = tuple(each.link.peer for each in self._arriving.values() if first.source in (None, each.peer))
            self._epoch.begin_wait(Wait(ranks, first.call))
        waiting: dict[Waitable, int] = {each.link: len(each.window) for each in made if each.lost is None}
        if bell in wait_for_links([], {**waiting, bell: 1}, limit, self._epoch):
            bell.silence()

    def _make(self, arriving: _Arriving) -> bool:
        """Take the connection if the peer has made one."""
        try:
            arriving.link.make(Deadline.after(_AT_ONCE_S))
        except ConnectError:
            return False
        except PeerLost as error:
            self._lose(arriving, error)
        return arriving.link.is_made

    def _advance(self, arriving: _Arriving) -> bool:
        try:
            received = arriving.link.receive_nowait(arriving.window) if arriving.window else 0
        except PeerLost as error:
            self._lose(arriving, error)
            return False
        arriving.window = arriving.window[received:]
        if arriving.window:
            return received > 0
        if arriving.header is None:
            self._begin_payload(arriving)
        if not arriving.window:
            self._end_payload(arriving)
        return True

    def _begin_payload(self, arriving: _Arriving) -> None:
        header = arriving.read_header()
        with self._lock:
            found = next((each for each in self._expected if each.takes(arriving.peer, header)), None)
            if found is not None:
                self._expected.remove(found)
        if found is not None and self._matches(found, arriving.peer, header):
            arriving.expected = found
            arriving.window = as_bytes(found.target)
        else:  # of a message that nobody wants, the bytes must be read all the same
            arriving.payload = np.empty(header.length, np.uint8)
            arriving.window = as_bytes(arriving.payload)

    def _end_payload(self, arriving: _Arriving) -> None:
        header, payload, found = arriving.header, arriving.payload, arriving.expected
        assert header is not None, "a payload follows a header"
        arriving.begin_next()
        if found is not None:
            found.pending.complete(lambda: arriving.peer)
            return
        assert payload is not None, "it was kept"
        with self._lock:
            late = next((each for each in self._expected if each.takes(arriving.peer, header)), None)
            if late is None:
                self._kept.append((arriving.peer, header, payload))
                return
            self._expected.remove(late)
        self._deliver(late, arriving.peer, header, payload)

    def _deliver(self, expected: _Expected, peer: int, header: Header, payload: Array) -> None:
        if self._matches(expected, peer, header):
            as_bytes(expected.target)[:] = as_bytes(payload)
            expected.pending.complete(lambda: peer)

    def _matches(self, expected: _Expected, peer: int, header: Header) -> bool:
        """Return whether a message is what was asked for; if it is not, whoever asked gets an error."""
        if header.signature == expected.call.signature:
            return True
        theirs = f"tag {header.tag.sequence}, {header.signature}"
        ours = f"tag {expected.call.sequence}, recv of {expected.call.signature}"
        expected.pending.fail(CollectiveMismatch.between(peer, theirs, self._name, ours))
        return False

    def _lose(self, arriving: _Arriving, error: PeerLost) -> None:
        """End the waits for one peer, and those for any source if no source is left."""
        arriving.lost = error
        is_last = all(each.lost for each in self._arriving.values())
        with self._lock:
            ended = [
                each for each in self._expected if each.source == arriving.peer or (each.source is None and is_last)
            ]
        if arriving.expected is not None:
            ended.append(arriving.expected)
        arriving.begin_next()
        self._fail(ended, error)

    def _give_up_late(self, expected: list[_Expected]) -> None:
        for each in expected:
            if each.call.deadline.has_passed:
                whom = "no rank" if each.source is None else f"rank {each.source} has not"
                words = f"{whom} sent {each.call} within {each.call.deadline.seconds:g} s"
                self._fail([each], DeadlineExceeded(words, peer=each.source))
        lost = [each for each in expected if each.source is not None and self._arriving[each.source].lost]
        for each in lost:
            error = self._arriving[each.source].lost if each.source is not None else None
            assert error is not None, "it is lost"
            self._fail([each], error)

    def _fail(self, ended: list[_Expected], error: BaseException) -> None:
        with self._lock:
            self._expected = [each for each in self._expected if each not in ended]
        for each in ended:
            each.pending.fail(error)


def _is_wanted(arriving: _Arriving, expected: list[_Expected]) -> bool:
    return arriving.lost is None and any(each.source in (None, arriving.peer) for each in expected)
