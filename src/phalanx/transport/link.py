"""The contract of every connection between two ranks."""

import select
from collections.abc import Collection
from typing import Protocol

from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch

_LOOK_S = 0.5  # how often to look whether the peers are still in reach


class Link(Protocol):
    """An ordered, lossless stream of bytes to one peer.

    Neither direction ever waits: that is what ``wait_for_links`` is for, so that one thread can send
    to and receive from many peers at once and no pair of ranks can block each other.
    """

    peer: int

    def send_nowait(self, data: memoryview) -> int:
        """Hand over as many bytes as there is room for, and return how many. Raises ``PeerLost``."""

    def receive_nowait(self, into: memoryview) -> int:
        """Fill ``into`` with what has arrived, and return how many bytes. Raises ``PeerLost``."""

    def fileno(self) -> int:
        """The descriptor to poll: readable when bytes arrive, writable when there is room."""

    def check(self) -> None:
        """Raise ``PeerLost`` if the peer has been out of reach for too long. A link that cannot know does nothing."""

    def close(self) -> None:
        """Hang up; the peer sees it after the bytes sent so far. Closing twice is harmless."""


def wait_for_links(sending: Collection[Link], receiving: Collection[Link], deadline: Deadline, epoch: Epoch) -> bool:
    """Wait until one of the links can go on; False if the deadline passed first.

    Raises the epoch's error as soon as it is revoked, and ``PeerLost`` if a peer is out of reach.
    """
    interest: dict[int, int] = {epoch.fileno(): select.POLLIN}
    for link in sending:
        interest[link.fileno()] = select.POLLOUT
    for link in receiving:
        interest[link.fileno()] = interest.get(link.fileno(), 0) | select.POLLIN
    poll = select.poll()
    for descriptor, events in interest.items():
        poll.register(descriptor, events)
    while not (ready := poll.poll(min(deadline.remaining_s(), _LOOK_S) * 1000)) and not deadline.has_passed:
        for link in (*sending, *receiving):
            link.check()
    epoch.check()
    return bool(ready)
