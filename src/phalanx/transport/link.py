"""The contract of every connection between two ranks."""

import select
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch

_LOOK_S = 0.5  # how often to look whether the peers are still in reach


class Waitable(Protocol):
    """What ``wait_for_links`` can wait for."""

    def wake_at(self, size_bytes: int) -> None:
        """Let waits go on until so many bytes have arrived, or fewer where that cannot be had."""

    def fileno(self) -> int:
        """The descriptor to poll: readable when bytes arrive, writable when there is room."""

    def check(self) -> None:
        """Raise ``PeerLost`` if the peer has been out of reach for too long. Whoever cannot know does nothing."""


Receiving = TypeVar("Receiving", bound=Waitable)


class Link(Waitable, Protocol):
    """An ordered, lossless stream of bytes to one peer.

    Neither direction ever waits: that is what ``wait_for_links`` is for, so that one thread can send
    to and receive from many peers at once and no pair of ranks can block each other.
    """

    peer: int

    @property
    def is_duplex(self) -> bool:
        """Whether one thread may send while another receives."""

    def send_nowait(self, data: memoryview) -> int:
        """Hand over as many bytes as there is room for, and return how many. Raises ``PeerLost``."""

    def receive_nowait(self, into: memoryview) -> int:
        """Fill ``into`` with what has arrived, and return how many bytes. Raises ``PeerLost``."""

    def close(self) -> None:
        """Hang up; the peer sees it after the bytes sent so far. Closing twice is harmless."""


def wait_for_links(
    sending: Collection[Waitable], receiving: Mapping[Receiving, int], deadline: Deadline, epoch: Epoch
) -> Collection[Waitable]:
    """Wait until some of the links can go on, and return these: none if the deadline passed first.

    ``receiving`` says how many bytes are sure to come over a link; a few of them are no reason to go on. Raises the
    epoch's error as soon as it is revoked, and ``PeerLost`` if a peer is out of reach.
    """
    links: dict[int, Waitable] = {}
    interest: dict[int, int] = {epoch.fileno(): select.POLLIN}
    for link in sending:
        descriptor = link.fileno()
        links[descriptor] = link
        interest[descriptor] = select.POLLOUT
    for link, missing in receiving.items():
        descriptor = link.fileno()
        links[descriptor] = link
        interest[descriptor] = interest.get(descriptor, 0) | select.POLLIN
        link.wake_at(missing)
    poll = select.poll()
    for descriptor, events in interest.items():
        poll.register(descriptor, events)
    while True:
        ready = poll.poll(min(deadline.remaining_s(), _LOOK_S) * 1000)
        epoch.check()
        found = {links[descriptor] for descriptor, _ in ready if descriptor in links}
        if found or deadline.has_passed:
            return found
        for link in links.values():
            link.check()
