"""Links between the threads of one process."""

import socket
import threading

from phalanx.transport.connector import check_wait
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.transport.fork import close_in_children
from phalanx.transport.link import Link
from phalanx.transport.stream import StreamLink

_LOOK_S = 0.02  # how often a rank that waits looks whether its epoch still holds


def memory_pair(left: int, right: int) -> tuple[StreamLink, StreamLink]:
    """Return both ends of a link inside this process: ``left``'s end, then ``right``'s.

    It is a socket pair, so its room is bounded as between hosts: a plan that deadlocks there deadlocks here, too.
    """
    left_end, right_end = map(close_in_children, socket.socketpair())
    return StreamLink(left_end, right), StreamLink(right_end, left)


class MemoryConnector:
    """Joins the threads of one process that ask for the same key."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unclaimed: dict[tuple[bytes, int, int], Link] = {}  # the ends that nobody has asked for yet

    def dial(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        """Return a new link from ``rank`` to ``peer``."""
        del deadline  # it never waits
        epoch.check()
        own, theirs = memory_pair(rank, peer)
        with self._changed:
            self._unclaimed[key, peer, rank] = theirs
            self._changed.notify_all()
        return own

    def accept(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        """Wait until ``peer`` has dialled ``rank`` with ``key``, and return the link."""
        with self._changed:
            while (key, rank, peer) not in self._unclaimed:
                check_wait(peer, deadline, epoch)
                self._changed.wait(min(deadline.remaining_s(), _LOOK_S))
            return self._unclaimed.pop((key, rank, peer))

    def close(self) -> None:
        """Close the ends that nobody has asked for. Closing twice is harmless."""
        with self._changed:
            while self._unclaimed:
                self._unclaimed.popitem()[1].close()
