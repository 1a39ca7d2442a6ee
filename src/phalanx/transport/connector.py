"""Turning connections into links: who is calling, and is it one of us?"""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from phalanx.errors import BadFrame, ConnectError, PeerLost, PhalanxError
from phalanx.transport.acceptor import Acceptor, ProvenConnection, Refusal
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.transport.link import Link
from phalanx.transport.stream import NOT_NOW, StreamLink
from phalanx.transport.tcp import connect
from phalanx.wire import HEADER_BYTES, Address, Header, LinkHello, decode, encode

_STRANGER_LIMIT_BYTES = 4096
_NAP_S = 0.1  # before somebody who hung up is called again
_MOST_EARLY = 4096  # far more than a group has ranks; keys that nobody asks for must not pile up
_log = logging.getLogger("phalanx")


class Connector(Protocol):
    """Whatever can join this rank to its peers."""

    def links(self, key: bytes, rank: int, peers: Collection[int], deadline: Deadline, epoch: Epoch) -> dict[int, Link]:
        """A link to each of ``peers``, who ask for ``rank`` with the same key."""


class _Dial(NamedTuple):
    """A call of ours to a lower rank: what to say when it is answered, and where else to try if it is not."""

    peer: int
    hello: bytes
    addresses: Sequence[Address]


class TcpConnector:
    """Joins processes over TCP: this rank calls the lower ranks, and the higher ranks call it."""

    def __init__(self, acceptor: Acceptor, addresses: Mapping[int, Sequence[Address]]) -> None:
        self._acceptor = acceptor
        self._addresses = addresses
        self._selector = selectors.DefaultSelector()
        self._selector.register(acceptor, selectors.EVENT_READ)
        self._one_at_a_time = threading.Lock()
        self._early: dict[tuple[bytes, int], socket.socket] = {}  # they ask for a group this rank has not come to yet

    def links(self, key: bytes, rank: int, peers: Collection[int], deadline: Deadline, epoch: Epoch) -> dict[int, Link]:
        """A link to each of ``peers``, who ask for ``rank`` with the same key."""
        with self._one_at_a_time:
            return self._link_all(key, rank, peers, deadline, epoch)

    def _link_all(
        self, key: bytes, rank: int, peers: Collection[int], deadline: Deadline, epoch: Epoch
    ) -> dict[int, Link]:
        hello = encode(LinkHello(epoch=epoch.number, rank=rank, key=key))
        linked: dict[int, Link] = {}
        self._selector.register(epoch, selectors.EVENT_READ)
        try:
            for peer in (peer for peer in peers if peer < rank):
                self._call(_Dial(peer, hello, self._addresses[peer]), deadline, epoch)
            while missing := [peer for peer in peers if peer not in linked]:
                for peer in missing:
                    if (key, peer) in self._early:
                        arrived = self._early.pop((key, peer))
                        linked[peer] = StreamLink(arrived, peer)
                        if peer > rank:
                            _say(arrived, hello, peer)
                if not all(peer in linked for peer in missing):
                    self._hear_hellos(deadline, missing, epoch)
        except BaseException:
            for link in linked.values():
                link.close()
            raise
        finally:
            self._selector.unregister(epoch)
        return linked

    def close(self) -> None:
        """Stop listening and drop whoever waits here. Closing twice is harmless."""
        self._acceptor.close()
        for waiting in self._early.values():
            waiting.close()
        if self._selector.get_map():
            for key in list(self._selector.get_map().values()):
                if isinstance(key.data, _Hello):
                    key.data.connected.close()
        self._selector.close()

    def _call(self, call: _Dial, deadline: Deadline, epoch: Epoch) -> None:
        whom = f"rank {call.peer}"
        self._acceptor.dial(connect(call.addresses, deadline, whom=whom, peer=call.peer, epoch=epoch), whom, call)

    def _hear_hellos(self, deadline: Deadline, missing: Sequence[int], epoch: Epoch) -> None:
        """Wait once; whoever has said who they are waits in ``_early``, strangers are sent away."""
        due = self._acceptor.next_due
        patience_s = deadline.remaining_s() if due is None else min(deadline.remaining_s(), due - time.monotonic())
        events = self._selector.select(max(0.0, patience_s))
        epoch.check()
        if deadline.has_passed:  # looked at also when something happened: strangers must not hold us up
            names = ", ".join(f"rank {peer}" for peer in missing)
            raise ConnectError(
                f"no link to {names} within {deadline.seconds:g} s: not started, or stuck?", peer=missing[0]
            )
        for key, _ in events:
            if isinstance(key.data, _Hello):
                self._hear(key.data)
        for arrival in self._acceptor.arrivals():
            self._welcome(arrival)
        for refusal in self._acceptor.refusals():
            self._call_elsewhere(refusal, deadline, epoch)

    def _welcome(self, arrival: ProvenConnection) -> None:
        hello = _Hello(arrival.socket, arrival.origin)
        self._selector.register(hello.connected, selectors.EVENT_READ, hello)
        if isinstance(arrival.tag, _Dial):
            _say(arrival.socket, arrival.tag.hello, arrival.tag.peer)

    def _call_elsewhere(self, refusal: Refusal, deadline: Deadline, epoch: Epoch) -> None:
        """Try without the first address, which may be a stranger's: in the end only one that answers is left.

        That one may hang up without a word, because strangers crowd at its acceptor: it is called again.
        """
        call, error = refusal.tag, refusal.error
        assert isinstance(call, _Dial), call
        _log.warning("no link to rank %d: %s", call.peer, error)
        if len(call.addresses) > 1:
            self._call(call._replace(addresses=call.addresses[1:]), deadline, epoch)
        elif isinstance(error, PhalanxError):
            raise ConnectError(f"no link to rank {call.peer}: {error}", peer=call.peer) from error
        else:
            time.sleep(min(_NAP_S, deadline.remaining_s()))
            self._call(call, deadline, epoch)

    def _hear(self, hello: "_Hello") -> None:
        try:
            message = hello.read_nowait()
        except (OSError, PhalanxError) as error:
            _log.warning("refused a connection from %s: %s", hello.origin, error)
            self._selector.unregister(hello.connected)
            hello.connected.close()
            return
        if message is not None:
            self._selector.unregister(hello.connected)
            self._early[message.key, message.rank] = hello.connected
            if len(self._early) > _MOST_EARLY:
                oldest = next(iter(self._early))
                self._early.pop(oldest).close()


def _say(connected: socket.socket, hello: bytes, peer: int) -> None:
    try:
        connected.sendall(hello)  # the first thing we say on this socket, so there is room for it
    except OSError as error:
        raise PeerLost(f"rank {peer} hung up while the group was forming: {error.strerror}", peer=peer) from error


class _Hello:
    """The first frame on a connection, read to its last byte and not one further: data may follow it."""

    def __init__(self, connected: socket.socket, origin: str) -> None:
        self.connected = connected
        self.origin = origin
        self._bytes = bytearray()
        self._wanted = HEADER_BYTES

    def read_nowait(self) -> LinkHello | None:
        """The hello, or None while bytes are missing."""
        while len(self._bytes) < self._wanted:
            try:
                arrived = self.connected.recv(self._wanted - len(self._bytes))
            except NOT_NOW:
                return None
            if not arrived:
                raise BadFrame("it hung up before it said who it is")
            self._bytes += arrived
            if len(self._bytes) == HEADER_BYTES == self._wanted:
                self._wanted += self._length()
        message = decode(bytes(self._bytes[HEADER_BYTES:]))
        if not isinstance(message, LinkHello):
            raise BadFrame(f"expected a link's hello, got {type(message).__name__}")
        return message

    def _length(self) -> int:
        length = Header.unpack(bytes(self._bytes)).length
        if length > _STRANGER_LIMIT_BYTES:
            raise BadFrame(f"a stranger announced {length} bytes; {_STRANGER_LIMIT_BYTES} are allowed")
        return length
