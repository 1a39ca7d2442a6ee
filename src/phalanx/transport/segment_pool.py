"""The buffers in an arena: a rank's own, its peers', and those that all ranks write."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.errors import PeerLost
from phalanx.transport.segment import Place, Segment, is_there, map_segment

Bytes = npt.NDArray[np.uint8]


class Location(NamedTuple):
    """Where data lies in a segment: its descriptor in the process that made it, its file number, and how far in."""

    descriptor: int
    inode: int
    offset: int


class _Span(NamedTuple):
    """The addresses of a segment that is mapped here."""

    start: int
    end: int
    place: Place


class SegmentPool:
    """Makes buffers that the ranks of a host can see, and finds them: own ones by address, peers' ones by location.

    A segment is closed and unmapped when the last array that uses it is gone.
    """

    def __init__(self, ranks: Sequence[int], pids: Sequence[int]) -> None:
        self._ranks = ranks
        self._pids = pids
        # Single operations on a dictionary are safe even if the end of an array interrupts them, in whatever thread.
        self._own: dict[int, _Span] = {}
        self._shared: dict[int, _Span] = {}
        self._open: dict[int, Segment] = {}
        self._mapped: dict[int, tuple[Place, Bytes]] = {}  # peers' memory, by inode

    def allocate(self, size_bytes: int) -> Bytes:
        """Return zeroed memory of this rank that its peers can read without a copy."""
        segment = Segment.create(size_bytes)
        whole = np.frombuffer(segment.memory, np.uint8)
        span = _span(whole, segment.place)
        self._open[span.start] = segment
        self._own[span.start] = span
        weakref.finalize(whole, _free, span.start, self._own, self._open).atexit = False
        return whole[:size_bytes]

    def create_shared(self, size_bytes: int) -> tuple[Bytes, Segment]:
        """Return memory that all ranks of the host will write, and where the others find it until it is released."""
        segment = Segment.create(size_bytes)
        whole = np.frombuffer(segment.memory, np.uint8)
        self._remember_shared(whole, segment.place)
        return whole[:size_bytes], segment

    def map_shared(self, index: int, location: Location, size_bytes: int) -> Bytes:
        """Return the memory that the rank at ``index`` created for all."""
        place, whole = self._map(index, location, writable=True)
        self._remember_shared(whole, place)
        return whole[:size_bytes]

    def locate(self, array: npt.NDArray[np.generic]) -> Location | None:
        """Return where a contiguous array lies in this rank's own memory, or None if it lies elsewhere."""
        found = _find(self._own, array)
        return found and Location(found[0].descriptor, found[0].inode, found[1])

    def locate_shared(self, array: npt.NDArray[np.generic]) -> tuple[int, int] | None:
        """Return file number and offset of a contiguous array in shared memory, alike on all ranks, or None."""
        found = _find(self._shared, array)
        return found and (found[0].inode, found[1])

    def read(self, index: int, location: Location, start: int, stop: int) -> Bytes:
        """Return, not to be written, bytes ``start`` to ``stop`` of what the rank at ``index`` has at ``location``."""
        found = self._mapped.get(location.inode)
        if found is None:
            self._mapped = {inode: found for inode, found in self._mapped.items() if is_there(found[0])}
            found = self._mapped[location.inode] = self._map(index, location, writable=False)
        return found[1][location.offset + start : location.offset + stop]

    def close(self) -> None:
        """Close all descriptors and forget the peers' memory; arrays that use memory keep it alive."""
        while self._open:
            self._open.popitem()[1].release()
        self._mapped = {}

    def _map(self, index: int, location: Location, *, writable: bool) -> tuple[Place, Bytes]:
        place = Place(self._pids[index], location.descriptor, location.inode)
        try:
            return place, np.frombuffer(map_segment(place, writable=writable), np.uint8)
        except OSError as error:  # the arena could be mapped, so permissions are right
            rank = self._ranks[index]
            words = f"rank {rank} (process {place.pid}) has ended, or left this call, before its memory was mapped here"
            raise PeerLost(words, peer=rank) from error

    def _remember_shared(self, whole: Bytes, place: Place) -> None:
        span = _span(whole, place)
        self._shared[span.start] = span
        weakref.finalize(whole, self._shared.pop, span.start).atexit = False


def _free(start: int, spans: dict[int, _Span], segments: dict[int, Segment]) -> None:
    """Forget the segment at ``start``, whose addresses may soon belong to something else, and close it."""
    del spans[start]
    if segment := segments.pop(start, None):
        segment.release()


def _span(whole: Bytes, place: Place) -> _Span:
    start = _address(whole)
    return _Span(start, start + len(whole), place)


def _find(spans: dict[int, _Span], array: npt.NDArray[np.generic]) -> tuple[Place, int] | None:
    if not spans or not array.size or not array.flags.writeable:  # what lies here was made here, and can be written
        return None
    address = _address(array)
    for start, end, place in tuple(spans.values()):
        if start <= address < end:
            return (place, address - start) if address + array.nbytes <= end else None
    return None


def _address(array: npt.NDArray[np.generic]) -> int:
    return _address_of(_first_byte(array.data))  # seven times as fast as numpy's own ways to ask


_address_of, _first_byte = ctypes.addressof, ctypes.c_char.from_buffer
