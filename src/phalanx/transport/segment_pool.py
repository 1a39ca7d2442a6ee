"""The buffers that people keep in an arena: a rank's own, its peers', and those of all."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.transport.segment import Place, Segment, map_segment

Bytes = npt.NDArray[np.uint8]


class Location(NamedTuple):
    """Where data lies in a segment: its descriptor in the process that made it, its file number, and how far in."""

    descriptor: int
    inode: int
    offset: int


class _Entry(NamedTuple):
    start: int
    end: int
    place: Place


class SegmentPool:
    """Finds buffers by address here, and peers' buffers by location."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._own: list[_Entry] = []
        self._shared: list[_Entry] = []
        self._unused: dict[int, list[Segment]] = {}
        self._held: list[Segment] = []
        self._mapped: dict[int, Bytes] = {}

    def allocate(self, size_bytes: int) -> Bytes:
        """Memory of this rank that its peers can read without a copy.

        When the last array that uses it is gone, it is kept for the next request of about its size.
        """
        rounded = 1 << max(0, size_bytes - 1).bit_length()  # few different sizes, and untouched pages cost nothing
        kept = self._unused.setdefault(rounded, [])
        if kept:
            segment = kept.pop()
            whole = np.frombuffer(segment.memory, np.uint8)
            whole[:size_bytes] = 0
        else:
            segment = Segment.create(rounded)
            self._held.append(segment)
            whole = np.frombuffer(segment.memory, np.uint8)
        self._own = _with(self._own, _entry(whole, segment.place))
        weakref.finalize(whole, kept.append, segment)
        return whole[:size_bytes]

    def create_shared(self, size_bytes: int) -> tuple[Bytes, Segment]:
        """Memory that all ranks of the host will write, and where the others find it until it is released."""
        segment = Segment.create(size_bytes)
        whole = np.frombuffer(segment.memory, np.uint8)
        self._remember_shared(whole, segment.place)
        return whole[:size_bytes], segment

    def map_shared(self, index: int, location: Location, size_bytes: int) -> Bytes:
        """The memory that the rank at ``index`` created for all."""
        place = Place(self._pids[index], location.descriptor, location.inode)
        whole = np.frombuffer(map_segment(place, writable=True), np.uint8)
        self._remember_shared(whole, place)
        return whole[:size_bytes]

    def locate(self, array: npt.NDArray[np.generic]) -> Location | None:
        """Where a contiguous array lies in this rank's own memory, or None if it lies elsewhere."""
        found = _find(self._own, array)
        return found and Location(found[0].descriptor, found[0].inode, found[1])

    def locate_shared(self, array: npt.NDArray[np.generic]) -> tuple[int, int] | None:
        """File number and offset of a contiguous array in shared memory, alike on all ranks, or None."""
        found = _find(self._shared, array)
        return found and (found[0].inode, found[1])

    def read(self, index: int, location: Location, start: int, stop: int) -> Bytes:
        """The bytes from ``start`` to ``stop`` of what the rank at ``index`` has at ``location``, not to be written."""
        memory = self._mapped.get(location.inode)
        if memory is None:
            place = Place(self._pids[index], location.descriptor, location.inode)
            memory = self._mapped[location.inode] = np.frombuffer(map_segment(place, writable=False), np.uint8)
        return memory[location.offset + start : location.offset + stop]

    def close(self) -> None:
        """Give up the names; arrays that use the memory keep it alive."""
        while self._held:
            self._held.pop().release()

    def _remember_shared(self, whole: Bytes, place: Place) -> None:
        entry = _entry(whole, place)
        self._shared = _with(self._shared, entry)
        weakref.finalize(whole, self._forget_shared, entry)  # its addresses may soon belong to something else

    def _forget_shared(self, entry: _Entry) -> None:
        self._shared = [other for other in self._shared if other != entry]


def _entry(whole: Bytes, place: Place) -> _Entry:
    start = _address(whole)
    return _Entry(start, start + len(whole), place)


def _with(entries: list[_Entry], entry: _Entry) -> list[_Entry]:
    """A new ordered list, so that a thread that searches the old one is not disturbed."""
    return sorted({*entries, entry})


def _find(entries: list[_Entry], array: npt.NDArray[np.generic]) -> tuple[Place, int] | None:
    if not entries or not array.size or not array.flags.writeable:  # what lies here was made here, and can be written
        return None
    address = _address(array)
    for start, end, place in entries:  # few, and in order
        if start <= address < end:
            return (place, address - start) if address + array.nbytes <= end else None
        if address < start:
            return None
    return None


def _address(array: npt.NDArray[np.generic]) -> int:
    return _address_of(_first_byte(array.data))  # seven times as fast as numpy's own ways to ask


_address_of, _first_byte = ctypes.addressof, ctypes.c_char.from_buffer
