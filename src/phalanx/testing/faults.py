"""Links that fail in the ways networks do, each time in the same way."""

import random
import time

from phalanx.errors import ConfigError, PeerLost
from phalanx.transport import Link

_PIECE_BYTES = 1 << 16  # how much a delayed link takes at most between two delays


class FaultyLink:
    """A link that delays, damages or cuts what this end sends; wrap the other end for the other direction.

    ``delay_s``: after each piece the link takes no more for a random time up to this. Keep it short: a caller that
    polls meanwhile finds the link ready although it takes nothing. ``corrupt_at``: one bit of the byte at this position
    is flipped. ``cut_after``: both ends lose each other when this many bytes have been sent. The seed decides how long
    delays and pieces are, and which bit is flipped.
    """

    def __init__(
        self,
        link: Link,
        *,
        seed: int = 0,
        delay_s: float = 0.0,
        cut_after: int | None = None,
        corrupt_at: int | None = None,
    ) -> None:
        if delay_s < 0 or (cut_after or 0) < 0 or (corrupt_at or 0) < 0:
            raise ConfigError(f"delays and positions begin at 0, not {(delay_s, cut_after, corrupt_at)}")
        self.peer = link.peer
        self._link = link
        self._random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self._delay_s = delay_s
        self._cut_after = cut_after
        self._corrupt_at = corrupt_at
        self._flip = 1 << self._random.randrange(8)
        self._sent = 0
        self._held_until = 0.0
        self._cut_if_due()

    @property
    def is_duplex(self) -> bool:
        """Whether one thread may send while another receives."""
        return self._link.is_duplex

    def send_nowait(self, data: memoryview) -> int:
        """Hand over the bytes that the faults let through, and return how many."""
        self._check_cut()
        now = time.monotonic()
        if now < self._held_until:
            return 0
        sent = self._link.send_nowait(self._spoil(data))
        self._sent += sent
        if sent:
            self._held_until = now + self._random.uniform(0, self._delay_s)
        self._cut_if_due()
        return sent

    def receive_nowait(self, into: memoryview) -> int:
        """Fill ``into`` with what has arrived, and return how many bytes."""
        self._check_cut()
        return self._link.receive_nowait(into)

    def wake_at(self, size_bytes: int) -> None:
        """Let waits go on until so many bytes have arrived."""
        self._link.wake_at(size_bytes)

    def fileno(self) -> int:
        """The descriptor of the link inside."""
        self._check_cut()
        return self._link.fileno()

    def check(self) -> None:
        """Raise ``PeerLost`` if the peer has been out of reach for too long."""
        self._check_cut()
        self._link.check()

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    def _spoil(self, data: memoryview) -> memoryview:
        """Return the next piece of ``data`` as it will arrive."""
        length = len(data)
        if self._cut_after is not None:
            length = min(length, self._cut_after - self._sent)
        if self._delay_s:
            length = min(length, self._random.randint(1, _PIECE_BYTES))
        piece = data[:length]
        if self._corrupt_at is None or not self._sent <= self._corrupt_at < self._sent + length:
            return piece
        damaged = bytearray(piece)  # a copy: the caller's own data stays whole
        damaged[self._corrupt_at - self._sent] ^= self._flip
        return memoryview(damaged)

    def _cut_if_due(self) -> None:
        if self._sent == self._cut_after:
            self._link.close()

    def _check_cut(self) -> None:
        if self._sent == self._cut_after:
            raise PeerLost(f"the link to rank {self.peer} was cut on purpose after {self._sent} bytes", peer=self.peer)
