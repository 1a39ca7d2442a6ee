"""Making links: one rank dials, and the other accepts."""

import hashlib
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from phalanx.errors import BadFrame, ConnectError, LinkClosed, MembershipError, PeerLost, PhalanxError, ProtocolError
from phalanx.transport.acceptor import Acceptor, call
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch, Wait
from phalanx.transport.fork import close_in_children
from phalanx.transport.link import Link
from phalanx.transport.shortage import shortage_in_words
from phalanx.transport.stream import NOT_NOW, StreamLink
from phalanx.transport.tcp import keep_alive
from phalanx.wire import Address, FrameReader, LinkHello, Purpose, decode, encode

_STRANGER_LIMIT_BYTES = 4096
_LOOK_S = 0.02  # how often a rank that waits for a call looks whether its epoch still holds
_MOST_UNCLAIMED = 4096  # far more than a group has ranks; calls that nobody asks for must not pile up
_log = logging.getLogger("phalanx")


class Connector(Protocol):
    """Makes the links of a rank. A link has a key, which both of its ends know."""

    def dial(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        """Return a new link from ``rank`` to ``peer``, who need not have asked for it yet."""

    def accept(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        """Wait until ``peer`` has dialled ``rank`` with ``key``, and return the link."""


class LazyLink:
    """The ``Link`` to ``peer`` that ``make`` returns, made when it is first needed."""

    def __init__(self, peer: int, make: Callable[[Deadline], Link]) -> None:
        self.peer = peer
        self._make = make
        self._link: Link | None = None
        self._is_closed = False

    @property
    def is_made(self) -> bool:
        """Whether bytes can be sent and received."""
        return self._link is not None

    def make(self, deadline: Deadline) -> None:
        """Make the link if that has not happened yet. Raises ``ConnectError`` at the deadline."""
        if self._is_closed:
            raise LinkClosed(f"the link to rank {self.peer} was closed on this side", peer=self.peer)
        if self._link is None:
            with shortage_in_words(f"cannot make a link to rank {self.peer}"):
                self._link = self._make(deadline)

    @property
    def is_duplex(self) -> bool:
        """Whether one thread may send while another receives."""
        return self._made.is_duplex

    def send_nowait(self, data: memoryview) -> int:
        """Hand over as many bytes as there is room for, and return how many."""
        return self._made.send_nowait(data)

    def receive_nowait(self, into: memoryview) -> int:
        """Fill ``into`` with what has arrived, and return how many bytes."""
        return self._made.receive_nowait(into)

    def wake_at(self, size_bytes: int) -> None:
        """Let waits go on until so many bytes have arrived."""
        self._made.wake_at(size_bytes)

    def fileno(self) -> int:
        """The descriptor of the link."""
        return self._made.fileno()

    def check(self) -> None:
        """Raise ``PeerLost`` if the peer has been out of reach for too long."""
        self._made.check()

    def close(self) -> None:
        """Hang up if there is a link, and never make one again."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()

    @property
    def _made(self) -> Link:
        assert self._link is not None, f"the link to rank {self.peer} was not made before it was used"
        return self._link


class TcpConnector:
    """Joins processes over TCP.

    A thread accepts all calls, whether or not this rank has asked for them: so a rank that dials never has to wait
    until its peer comes to the same call. ``own`` is what this rank says of itself; its key is that of the epoch. A
    rank that waits for a link learns when its other end has been out of reach for ``patience_s``. One connector serves
    one epoch after another: a peer that is in a later epoch already is answered when that epoch begins here.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        addresses: Mapping[int, Sequence[Address]],
        own: LinkHello,
        patience_s: float = 5.0,
    ) -> None:
        self._acceptor = acceptor
        self._addresses = addresses
        self._own = own
        self._patience_s = patience_s
        self._unclaimed: dict[tuple[bytes, int], socket.socket] = {}  # calls that this rank has not asked for yet
        self._early: list[tuple[_Hello, LinkHello]] = []  # calls of epochs that have not begun here
        self._changed = threading.Condition()
        self._is_closing = False
        self._selector = close_in_children(selectors.DefaultSelector())
        self._selector.register(acceptor, selectors.EVENT_READ)
        self._wakes, self._wake = map(close_in_children, socket.socketpair())
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._attend, name=f"phalanx-accept-{own.rank}", daemon=True)
        self._thread.start()

    def begin(self, addresses: Mapping[int, Sequence[Address]], own: LinkHello, patience_s: float) -> None:
        """Make links of another epoch from now on."""
        with self._changed:
            if own == self._own:
                return  # it has begun, and peers may have called already
            self._addresses, self._own, self._patience_s = addresses, own, patience_s
            for unclaimed in self._unclaimed.values():
                unclaimed.close()
            self._unclaimed.clear()
            early, self._early = self._early, []
        for hello, message in early:
            self._answer(hello, message)

    def dial(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        """Return a new link to ``peer``, whose thread accepts it."""
        hello = encode(LinkHello(epoch=self._own.epoch, rank=rank, key=key))

        def greet(connected: socket.socket) -> None:
            connected.settimeout(0)
            connected.sendall(hello)  # the first thing we say on this socket, so there is room for it
            answer = _Hello(connected, f"rank {peer}").wait(deadline, epoch)
            if (answer.rank, answer.key) != (peer, answer_to(key, self._own.key)):
                raise ConnectionRefusedError(0, "a process of another group answers there")

        try:
            epoch.begin_wait(Wait((peer,), f"making a link to rank {peer}"))
            connected = call(
                self._addresses[peer],
                deadline,
                self._acceptor.credentials,
                Purpose.LINK,
                whom=f"rank {peer}",
                peer=peer,
                epoch=epoch,
                greet=greet,
            )
        except (MembershipError, ProtocolError) as error:
            epoch.check()
            raise ConnectError(f"no link to rank {peer}: {error}", peer=peer) from error
        finally:
            epoch.end_wait()
        return self._link(connected, peer)

    def accept(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        """Wait until ``peer`` has dialled with ``key``, and return the link."""
        del rank  # there is one in this process
        epoch.begin_wait(Wait((peer,), f"waiting for a link to rank {peer}"))
        try:
            with self._changed:
                while (key, peer) not in self._unclaimed:
                    check_wait(peer, deadline, epoch)
                    if self._is_closing:
                        raise LinkClosed("this group was closed on this side", peer=peer)
                    self._changed.wait(min(deadline.remaining_s(), _LOOK_S))
                return self._link(self._unclaimed.pop((key, peer)), peer)
        finally:
            epoch.end_wait()

    def _link(self, connected: socket.socket, peer: int) -> StreamLink:
        keep_alive(connected, self._patience_s)
        return StreamLink(connected, peer, self._patience_s)

    def close(self) -> None:
        """Stop listening, and hang up on everybody who waits here. Closing twice is harmless."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._wake.send(b"!")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Hello):
                key.data.connected.close()
        for waiting in (*self._unclaimed.values(), *(hello.connected for hello, _ in self._early)):
            waiting.close()
        self._acceptor.close()
        self._selector.close()
        self._wakes.close()
        self._wake.close()

    def _attend(self) -> None:
        while not self._is_closing:
            due = self._acceptor.next_due
            for key, _ in self._selector.select(None if due is None else max(0.0, due - time.monotonic())):
                if isinstance(key.data, _Hello):
                    self._hear(key.data)
            for proven in self._acceptor.arrivals():
                hello = _Hello(proven.socket, proven.origin)
                self._selector.register(hello.connected, selectors.EVENT_READ, hello)
                self._hear(hello)  # TLS may have deciphered it already, where no poll sees it

    def _hear(self, hello: "_Hello") -> None:
        """Read a hello as far as it has arrived, and answer it when it is complete."""
        try:
            message = hello.read_nowait()
        except (OSError, PhalanxError) as error:
            self._selector.unregister(hello.connected)
            _refuse(hello, error)
            return
        if message is not None:
            self._selector.unregister(hello.connected)
            self._answer(hello, message)

    def _answer(self, hello: "_Hello", message: LinkHello) -> None:
        """Answer a hello of this epoch, keep one of a later epoch, and refuse one of an epoch that is over."""
        with self._changed:
            own = self._own
            if message.epoch > own.epoch and len(self._early) < _MOST_UNCLAIMED:
                self._early.append((hello, message))
                return
            try:
                if message.epoch != own.epoch:
                    raise ConnectionRefusedError(0, f"it is in epoch {message.epoch}, and this rank in {own.epoch}")
                hello.connected.sendall(encode(LinkHello(own.epoch, own.rank, answer_to(message.key, own.key))))
            except OSError as error:
                _refuse(hello, error)
                return
            replaced = self._unclaimed.pop((message.key, message.rank), None)
            self._unclaimed[message.key, message.rank] = hello.connected
            if replaced is None and len(self._unclaimed) > _MOST_UNCLAIMED:
                replaced = self._unclaimed.pop(next(iter(self._unclaimed)))
            self._changed.notify_all()
        if replaced is not None:
            replaced.close()


def _refuse(hello: "_Hello", error: OSError | PhalanxError) -> None:
    _log.warning("refused a connection from %s: %s", hello.origin, getattr(error, "strerror", None) or error)
    hello.connected.close()


def answer_to(key: bytes, epoch_key: bytes) -> bytes:
    """Return the key of the answer to a hello with ``key``: it proves that the answerer is in the same epoch."""
    return hashlib.sha256(epoch_key + key).digest()[:16]


def check_wait(peer: int, deadline: Deadline, epoch: Epoch) -> None:
    """Raise the reason if it is no use to wait any longer until ``peer`` dials."""
    epoch.check()
    if peer in epoch.left:
        raise PeerLost(f"rank {peer} left the group before it made a link to this rank", peer=peer)
    if deadline.has_passed:
        raise ConnectError(f"no link to rank {peer} within {deadline.seconds:g} s: not started, or stuck?", peer=peer)


class _Hello:
    """The first frame on a connection, read to its last byte and not one further: data may follow it."""

    def __init__(self, connected: socket.socket, origin: str) -> None:
        self.connected = connected
        self.origin = origin
        self._reader = FrameReader(_STRANGER_LIMIT_BYTES)

    def read_nowait(self) -> LinkHello | None:
        """Return the hello, or None while bytes are missing."""
        while (frame := self._reader.next_frame()) is None:
            try:
                arrived = self.connected.recv(self._reader.wants)
            except NOT_NOW:
                return None
            if not arrived:
                raise ConnectionResetError(0, "it hung up before it said who it is")
            self._reader.feed(arrived)
        message = decode(frame[1])
        if not isinstance(message, LinkHello):
            raise BadFrame(f"expected a link's hello, got {type(message).__name__}")
        return message

    def wait(self, deadline: Deadline, epoch: Epoch) -> LinkHello:
        """Return the hello when it has arrived. Raises ``TimeoutError`` at the deadline, or the epoch's error."""
        poll = select.poll()
        poll.register(self.connected, select.POLLIN)
        poll.register(epoch, select.POLLIN)
        while (message := self.read_nowait()) is None:
            if not poll.poll(deadline.remaining_s() * 1000):
                raise TimeoutError("it does not say who it is")
            epoch.check()
        return message
