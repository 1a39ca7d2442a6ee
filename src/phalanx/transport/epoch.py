"""One membership of the group, as the waits of one rank see it."""

import contextlib
import copy
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from phalanx.errors import PhalanxError
from phalanx.telemetry import OFF, Recorder
from phalanx.transport.fork import close_in_children
from phalanx.transport.shortage import shortage_in_words


class Wait(NamedTuple):
    """The ranks that a rank waits for and what it is doing; the call and its group, if ranks must compare them."""

    ranks: tuple[int, ...]
    words: object
    group: str = ""
    sequence: int = 0


class Waited(NamedTuple):
    """What a rank waits for, in all its threads: the longest wait, and the seconds spent waiting for each rank."""

    wait: Wait
    longest_s: float
    waited_s: dict[int, float]


class Epoch:
    """Ends every wait of this rank when the membership it relied on is gone.

    Whoever waits looks at ``check`` between naps, or polls the descriptor, which becomes readable
    once and for all when the epoch is revoked. ``waiting`` tells the coordinator whom this rank waits for,
    so that a stall is blamed on the rank that causes it and not on its neighbour; ``suspect_mismatch`` asks it whether
    everybody is in the same call.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._waits: dict[int, tuple[Wait, float]] = {}  # by thread: a group may wait in several at once; since when
        self.recorder: Recorder = OFF
        """Records every wait that is not short."""
        self.suspect_mismatch: Callable[[], None] = lambda: None
        self.left: frozenset[int] = frozenset()
        self.error: PhalanxError | None = None
        with shortage_in_words("cannot begin an epoch"):
            self._read_end, self._write_end = map(close_in_children, socket.socketpair())

    def revoke(self, error: PhalanxError) -> None:
        """End all waits, now and later, with ``error``; the first reason given stays."""
        if self.error is None:
            self.error = error
            with contextlib.suppress(OSError):  # closed meanwhile: then nobody waits
                self._write_end.send(b"!")

    def begin_wait(self, wait: Wait) -> None:
        """Say what this thread waits for; until ``end_wait``, saying it again continues the same wait."""
        thread = threading.get_ident()
        _, since = self._waits.get(thread) or (wait, time.monotonic())
        self._waits[thread] = wait, since

    def end_wait(self) -> None:
        """Say that this thread waits no longer."""
        ended = self._waits.pop(threading.get_ident(), None)
        if ended and self.recorder.is_on and ended[0].ranks:
            wait, since = ended
            self.recorder.record_wait(wait.ranks[0], int(since * 1e9))

    @property
    def waiting(self) -> Waited | None:
        """What this rank waits for: the ranks of all its waits, and the words of one, preferably of a collective."""
        now = time.monotonic()
        waits = sorted(self._waits.copy().values(), key=lambda each: not each[0].group)
        if not waits:
            return None
        waited_s: dict[int, float] = {}
        for wait, since in waits:
            waited_s |= {rank: max(now - since, waited_s.get(rank, 0.0)) for rank in wait.ranks}
        return Waited(waits[0][0]._replace(ranks=tuple(waited_s)), now - min(since for _, since in waits), waited_s)

    def leave(self, rank: int) -> None:
        """Know that ``rank`` closed its group: only who still waits for it has a reason to stop."""
        self.left |= {rank}

    def check(self) -> None:
        """Raise the reason if the epoch was revoked."""
        if self.error is not None:
            raise copy.copy(self.error)  # several threads may raise it: each gets a traceback of its own

    def fileno(self) -> int:
        """A descriptor that becomes readable when the epoch is revoked."""
        return self._read_end.fileno()

    def close(self) -> None:
        """Give the descriptors back. Closing twice is harmless."""
        self._read_end.close()
        self._write_end.close()
        self.suspect_mismatch = lambda: None  # it may keep this epoch alive
