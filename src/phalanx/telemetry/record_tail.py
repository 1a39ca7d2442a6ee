"""Reading the files of a run's telemetry piece by piece: what is new, and what was recorded between two times.

The records of 64 workers may have two gigabytes, so nobody reads all of them to show some. A batch can be found from
any place of a file: it begins with a mark and has a checksum.
"""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

import numpy as np

from phalanx.errors import ConfigError
from phalanx.plain_file import open_plain
from phalanx.telemetry.record import RecordBatch
from phalanx.telemetry.record_file import FRAME, LONGEST_BYTES, MAGIC, OLDER, SUFFIX, decode_payload

_PIECE_BYTES = 1 << 16


class RecordTail:
    """Follows the records of one file. The first look begins at most ``most_bytes`` before the end of the file."""

    def __init__(self, path: Path, most_bytes: int = 1 << 18) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._at: int | None = None
        self._file_number = 0

    def read(self) -> list[RecordBatch]:
        """Return the batches that are new. A file that was replaced is read from its beginning."""
        try:
            with open_plain(self._path) as file:
                status = self._path.stat()
                if status.st_ino != self._file_number:
                    self._at = 0 if self._file_number else None
                    self._file_number = status.st_ino
                if self._at == status.st_size:
                    return []
                if self._at is None or status.st_size - self._at > self._most_bytes:
                    self._at = max(0, status.st_size - self._most_bytes)
                file.seek(self._at)
                found = list(_find(file.read(self._most_bytes) or b""))
        except OSError:
            return []  # it was removed, or replaced at this very moment
        if found:
            self._at += found[-1][1]
        return [batch for batch, _ in found]


def read_between(path: Path, start_ns: int, end_ns: int, most_bytes: int, pieces: int = 32) -> list[RecordBatch]:
    """Return batches with records between two times since 1970; of too many, some that are evenly spread."""
    try:
        with open_plain(path) as file:
            size = path.stat().st_size
            first, last = _search(file, size, start_ns), _search(file, size, end_ns)
            last = min(size, last + _PIECE_BYTES)  # the batch at the end has some of them
            if last - first <= most_bytes:
                return [batch for batch, _ in _find(_read_at(file, first, last - first))]
            starts = np.linspace(first, last - most_bytes // pieces, pieces).astype(int).tolist()
            found = (_find(_read_at(file, start, most_bytes // pieces)) for start in starts)
            return [batch for piece in found for batch, _ in piece]
    except OSError:
        return []


def read_start(path: Path) -> int | None:
    """Return the time since 1970 of the first record of a file; None if there are none."""
    try:
        with open_plain(path) as file:
            first = next(_find(_read_at(file, 0, 16 * _PIECE_BYTES)), None)
    except OSError:
        return None
    if first is None:
        return None
    return int(first[0].table()["start"].min(initial=2**62)) + first[0].wall_ns


def _search(file: FileIO, size: int, wanted_ns: int) -> int:
    """Return a place shortly before the first batch that ends after a time, by bisection."""
    low, high = 0, size
    while high - low > _PIECE_BYTES:
        middle = (low + high) // 2
        found = next(_find(_read_at(file, middle, min(2 * _PIECE_BYTES, size - middle))), None)
        if found is not None and found[0].end_ns < wanted_ns:
            low = middle
        else:
            high = middle
    return low


def _find(content: bytes) -> Iterator[tuple[RecordBatch, int]]:
    """Yield every whole batch in some bytes of a file, and where it ends. What is no batch is passed over."""
    at = content.find(MAGIC)
    while at >= 0:
        begin = at + FRAME.size
        if begin > len(content):
            return
        _, length, checksum = FRAME.unpack_from(content, at)
        payload = content[begin : begin + length] if length <= LONGEST_BYTES else b""
        at += 1
        if payload and len(payload) == length and zlib.crc32(payload) == checksum:
            at = begin + length
            with suppress(ConfigError):  # of another release
                yield decode_payload("a file of records", payload), at
        at = content.find(MAGIC, at)


def _read_at(file: FileIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length) or b""


def find_files(folder: Path) -> list[Path]:
    """Return the files of records in a folder, in the order of their names."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    except OSError:
        return []  # nobody has recorded anything yet


def is_older(path: Path) -> bool:
    """Return whether a file grows no more, because another one has taken its place."""
    return path.name.endswith(OLDER)
