"""Links between the threads of one process."""

import socket
import threading
from collections.abc import Iterable
from contextlib import ExitStack

from phalanx.errors import ConnectError
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch
from phalanx.transport.link import Link
from phalanx.transport.stream import StreamLink


def memory_pair(left: int, right: int) -> tuple[StreamLink, StreamLink]:
    """Both ends of a link that never leaves this process: ``left``'s end, then ``right``'s.

    A socket pair, so that room is as bounded and as real as between hosts: what would deadlock there does here.
    """
    left_end, right_end = socket.socketpair()
    return StreamLink(left_end, right), StreamLink(right_end, left)


class MemoryConnector:
    """Joins the threads of one process that ask for the same key."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[bytes, int, int], Link] = {}

    def links(self, key: bytes, rank: int, peers: Iterable[int], deadline: Deadline, epoch: Epoch) -> dict[int, Link]:
        """A link from ``rank`` to each of ``peers``, who must ask with the same key."""
        links: dict[int, Link] = {}
        with self._changed, ExitStack() as undo:
            for peer in peers:
                if rank < peer:
                    links[peer], self._waiting[key, peer, rank] = memory_pair(rank, peer)
                    undo.callback(links[peer].close)
            self._changed.notify_all()
            for peer in peers:
                if peer < rank:
                    links[peer] = self._take(key, rank, peer, deadline, epoch)
                    undo.callback(links[peer].close)
            undo.pop_all()
        return links

    def close(self) -> None:
        """Drop the ends that nobody came for. Closing twice is harmless."""
        with self._changed:
            while self._waiting:
                self._waiting.popitem()[1].close()

    def _take(self, key: bytes, rank: int, peer: int, deadline: Deadline, epoch: Epoch) -> Link:
        while (key, rank, peer) not in self._waiting:
            epoch.check()
            if deadline.has_passed:
                raise ConnectError(f"rank {peer} did not come within {deadline.seconds} s", peer=peer)
            self._changed.wait(min(deadline.remaining_s(), 0.05))  # short naps: a revoked epoch does not notify us
        return self._waiting.pop((key, rank, peer))
