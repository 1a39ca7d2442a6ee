"""The files of a run's telemetry: there is one for the records of every worker, in batches."""

import contextlib
import logging
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO, FileIO, RawIOBase
from pathlib import Path
from time import monotonic
from typing import Self

import msgspec
import numpy as np

from phalanx.errors import ConfigError
from phalanx.plain_file import open_plain
from phalanx.telemetry.record import RECORD, RecordBatch, WorkerRecords, join_batches
from phalanx.telemetry.recorder import Recorder

SUFFIX = ".records"
OLDER = ".older.records"
_MOST_BYTES = 32 << 20  # of the records of one worker
LONGEST_BYTES = 1 << 25  # of one batch
_LONGEST_NAME = 200
_MOST_WORKERS = 4096
_EVERY_S = 1.0
_FULL = 0.25  # of a ring
FRAME = struct.Struct("<4sII")  # magic, length, checksum
MAGIC = b"PHR1"
_decoder = msgspec.msgpack.Decoder(RecordBatch)
_log = logging.getLogger("phalanx")


class BatchFile:
    """The file to which batches of one worker's records are appended.

    There are two files: when the first is full, it replaces the second. So the latest records are always there, and at
    most ``most_bytes`` of them. No step depends on it: if it cannot be written, a warning says so once, and the rest of
    the records are lost.
    """

    def __init__(self, folder: Path, worker: str, most_bytes: int = _MOST_BYTES) -> None:
        name = re.sub(r"[^\w.-]", "-", worker)[:_LONGEST_NAME]
        self._path, self._older = folder / f"{name}{SUFFIX}", folder / f"{name}{OLDER}"
        self._half_bytes = most_bytes // 2
        self._written = 0
        self._file: FileIO | None = None
        with self._losing_records():
            folder.mkdir(parents=True, exist_ok=True)
            self._open()

    def append(self, frame: bytes) -> None:
        """Append a batch as ``encode_batch`` returns it."""
        with self._losing_records():
            self._append(frame)

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        if self._file:
            self._file.close()
        self._file = None

    def _append(self, frame: bytes) -> None:
        if self._file and self._written and self._written + len(frame) > self._half_bytes:
            self.close()
            self._path.replace(self._older)
            self._open()
        rest = frame
        while self._file and rest:
            rest = rest[self._file.write(rest) :]
        self._written += len(frame)

    def _open(self) -> None:
        self._file = open_plain(self._path, "ab")
        self._written = self._file.tell()

    @contextlib.contextmanager
    def _losing_records(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            words = "cannot write telemetry to %s: %s; the run continues without it"
            _log.warning(words, self._path, error.strerror)


class RecordWriter:
    """Writes what was recorded between steps: ``write`` gets every batch, as ``encode_batch`` returns it."""

    def __init__(self, recorder: Recorder, write: Callable[[bytes], None]) -> None:
        self.recorder = recorder
        self._write = write
        self._due = 0.0

    def flush(self, *, is_last: bool = False) -> None:
        """Write what was recorded since the last time, if there is much of it or a second has passed."""
        now = monotonic()
        if now < self._due and self.recorder.fullness < _FULL and not is_last:
            return
        self._due = now + _EVERY_S
        if batch := self.recorder.take():
            self._write(encode_batch(batch))

    def close(self) -> None:
        """Write the last records, and close the recorder. Closing twice is harmless."""
        self.flush(is_last=True)
        self.recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[RecordWriter]:
    """Record during the block what this process does, into a file in ``folder``."""
    recorder = Recorder()
    with contextlib.closing(BatchFile(folder, recorder.worker)) as file, RecordWriter(recorder, file.append) as writer:
        yield writer


class RecordCollector:
    """Writes batches that come from other machines to ``folder``, one file for each worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BatchFile] = {}

    def take(self, frame: bytes) -> bool:
        """Write a batch, and return whether it is one. There are limits to how many workers may send any."""
        try:
            (batch,) = _read(BytesIO(frame), "a message")
        except (ConfigError, ValueError):
            return False
        if batch.worker not in self._files and len(self._files) < _MOST_WORKERS:
            self._files[batch.worker] = BatchFile(self._folder, f"sent-{batch.worker}")  # never the file of another
        if file := self._files.get(batch.worker):
            file.append(frame)
        return True

    def close(self) -> None:
        """Close all files. Closing twice is harmless."""
        for file in self._files.values():
            file.close()


def encode_batch(batch: RecordBatch) -> bytes:
    """Return a batch as it is in a file."""
    payload = msgspec.msgpack.encode(batch)
    return FRAME.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def read_workers(folder: Path) -> list[WorkerRecords]:
    """Return the records of all workers in a folder, by the name of the worker. A batch that was cut is left out."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    except OSError as error:
        words = f"there is no telemetry in {folder}: {error.strerror}"
        raise ConfigError(f"{words}; was the run made with run.telemetry = false?") from error
    batches: dict[str, list[RecordBatch]] = {}
    for path in paths:
        for batch in _read_file(path):
            batches.setdefault(batch.worker, []).append(batch)
    return [join_batches(worker, each) for worker, each in sorted(batches.items())]


def _read_file(path: Path) -> list[RecordBatch]:
    try:
        with open_plain(path) as file:
            return list(_read(file, str(path)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; is it the telemetry of a run?") from error


def _read(file: RawIOBase | BytesIO, name: str) -> Iterator[RecordBatch]:
    while len(head := file.read(FRAME.size) or b"") == FRAME.size:
        magic, length, checksum = FRAME.unpack(head)
        if magic != MAGIC or length > LONGEST_BYTES:
            raise _damaged(name, "a batch does not begin where it should")
        payload = file.read(length) or b""
        if len(payload) < length:
            return  # it is being written, or its worker was killed
        if zlib.crc32(payload) != checksum:
            raise _damaged(name, "a checksum differs")
        yield decode_payload(name, payload)


def decode_payload(name: str, payload: bytes) -> RecordBatch:
    """Return the batch in a payload whose checksum is right; ConfigError names the file if it is none."""
    try:
        batch = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(name, str(error)) from error
    if len(batch.records) % RECORD.itemsize or not batch.tracks:
        raise _damaged(name, "a batch has half a record, or no threads")
    if np.frombuffer(batch.records, RECORD)["track"].max(initial=0) >= len(batch.tracks):
        raise _damaged(name, "a record is of a thread without a name")
    return batch


def _damaged(name: str, why: str) -> ConfigError:
    return ConfigError(f"{name} is damaged, or of another release: {why}; remove it to read the others")
