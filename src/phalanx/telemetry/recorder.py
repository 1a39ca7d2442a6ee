"""Recording what a rank does, in memory that was allocated before. Writing a record takes about a microsecond."""

import gc
import os
import socket
import threading
import time
from collections.abc import Mapping
from threading import get_ident
from time import monotonic_ns

import numpy as np

from phalanx.telemetry.clock import ClockEstimate
from phalanx.telemetry.record import NOTHING, PACKING, RECORD, SHORTEST_NS, Activity, RecordBatch

_CAPACITY = 8192  # records of each thread between two calls of ``take``; a power of two
_COLLECTING = "garbage collection"
_MANY_RINGS = 8
_pack_into, _SIZE = PACKING.pack_into, PACKING.size


class Recorder:
    """Keeps the last records of one rank until somebody takes them. With a ``capacity`` of 0 it records nothing.

    Each thread writes into a ring of its own, so no thread waits for another one. ``take`` is called by one thread. A
    recorder that is on also records when Python collects garbage, until it is closed.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        assert capacity & (capacity - 1) == 0, "a power of two, for quick arithmetic"
        self.is_on = capacity > 0
        self.clock = ClockEstimate()
        """How far the coordinator's clock is ahead of this machine's."""
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self._capacity = capacity
        self._step = self._epoch = 0
        self._rank = NOTHING
        self._rings: dict[int, _Ring] = {}  # by thread
        self._tracks: list[str] = []
        self._collecting_since = 0
        if self.is_on:
            self._collections = _Ring(capacity, self._track_of(_COLLECTING))
            gc.callbacks.append(self._note_collection)

    def begin_step(self, step: int, rank: int, epoch: int) -> None:
        """Say which step, rank and epoch the records from now on belong to."""
        if self.is_on:
            self._step, self._rank, self._epoch = step & 0xFFFF_FFFF, rank, epoch & 0xFFFF_FFFF

    def about(self, number: int) -> None:
        """Say which bucket this thread works on: records that name no number of their own get this one."""
        if self.is_on:
            self._ring().about = min(number, NOTHING)

    def record(self, activity: Activity, start_ns: int, number: int = NOTHING, peer: int = NOTHING) -> None:
        """Record what this thread has done since ``start_ns``, a time of ``time.monotonic_ns``."""
        if not self.is_on:
            return
        ring = self._rings.get(get_ident()) or self._ring()
        _pack_into(
            ring.memory,
            (ring.count & ring.mask) * _SIZE,
            start_ns,
            monotonic_ns(),
            self._step,
            self._epoch,
            ring.about if number >= NOTHING else number,
            self._rank,
            peer,
            activity,
            ring.track,
        )
        ring.count += 1

    def record_wait(self, peer: int, start_ns: int) -> None:
        """Record that this thread has waited for ``peer``, unless that was short."""
        if self.is_on and monotonic_ns() - start_ns >= SHORTEST_NS:
            self.record(Activity.WAIT, start_ns, peer=peer)

    @property
    def fullness(self) -> float:
        """How much of the fullest ring is waiting to be taken."""
        return max((ring.count - ring.taken for ring in self._all_rings()), default=0) / max(1, self._capacity)

    def take(self) -> RecordBatch | None:
        """Return the records since the last call; None if there are none."""
        rings = self._all_rings()
        taken = [ring.take() for ring in rings]
        dropped = sum(lost for _, lost in taken)
        records = b"".join(rows.tobytes() for rows, _ in taken)
        if len(rings) > _MANY_RINGS:  # every epoch has a new thread for its exchanges
            self._forget_ended_threads()
        if not records:
            return None
        now = monotonic_ns()
        offset_ns, uncertainty_ns = self.clock.at(now) or (0, None)
        wall_ns = time.time_ns() - now - offset_ns
        return RecordBatch(self.worker, tuple(self._tracks), offset_ns, uncertainty_ns, wall_ns, dropped, records)

    def close(self) -> None:
        """Stop recording. Closing twice is harmless."""
        self.is_on = False
        if self._note_collection in gc.callbacks:
            gc.callbacks.remove(self._note_collection)

    def _all_rings(self) -> "list[_Ring]":
        return [*self._rings.copy().values(), self._collections] if self._capacity else []

    def _ring(self) -> "_Ring":
        """Return the ring of this thread, which is made when the thread records for the first time."""
        thread = get_ident()
        if thread not in self._rings:
            self._rings[thread] = _Ring(self._capacity, self._track_of(_describe_thread()))
        return self._rings[thread]

    def _track_of(self, name: str) -> int:
        if name not in self._tracks:
            self._tracks.append(name)
        return min(self._tracks.index(name), 255)

    def _forget_ended_threads(self) -> None:
        living = {thread.ident for thread in threading.enumerate()}
        for ident in [each for each, ring in self._rings.items() if each not in living and ring.count == ring.taken]:
            del self._rings[ident]

    def _note_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Record a garbage collection. It may interrupt any thread in the middle of ``record``: it has its own ring."""
        if phase == "start":
            self._collecting_since = monotonic_ns()
            return
        start, end = self._collecting_since, monotonic_ns()
        if end - start < SHORTEST_NS:
            return
        ring, generation = self._collections, info["generation"]
        place = (ring.count & ring.mask) * _SIZE
        what = Activity.COLLECT
        words = (start, end, self._step, self._epoch, generation, self._rank, NOTHING, what, ring.track)
        _pack_into(ring.memory, place, *words)
        ring.count += 1


class _Ring:
    """The last records of one thread. Only that thread adds to ``count``, and only after the record is complete."""

    __slots__ = ("_rows", "about", "count", "mask", "memory", "taken", "track")

    def __init__(self, capacity: int, track: int) -> None:
        self.memory = bytearray(capacity * _SIZE)
        self.mask = capacity - 1
        self.track = track
        self.about = NOTHING
        self.count = self.taken = 0
        self._rows = np.frombuffer(self.memory, RECORD)

    def take(self) -> tuple[np.ndarray, int]:
        """Return the records since the last call, and how many were overwritten before that."""
        count, capacity = self.count, self.mask + 1
        first = max(self.taken, count - capacity)
        rows = self._rows[np.arange(first, count) & self.mask]
        late = min(max(self.count - capacity - first, 0), len(rows))  # overwritten while we copied
        lost, self.taken = first - self.taken + late, count
        return rows[late:], lost


OFF = Recorder(0)
"""Records nothing."""


def _describe_thread() -> str:
    """Return the name of this thread for people: "training" for the main one, "exchange" for phalanx-exchange-3."""
    name = threading.current_thread().name
    return "training" if name == "MainThread" else name.removeprefix("phalanx-").rstrip("-_0123456789") or name
