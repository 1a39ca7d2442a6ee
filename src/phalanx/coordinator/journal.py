"""The coordinator's journal: a file of checksummed lines, each on the disk before anybody acts on it."""

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from phalanx.coordinator.record import Line, recall
from phalanx.errors import ConfigError

_HEADER = b"phalanx journal 1\n"
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Journal:
    """The file in which a coordinator records its run. Only one coordinator at a time can open it.

    ``past`` is the state of the run when the file was opened. If the last line is damaged, the coordinator crashed
    while it wrote that line. Nobody has acted on the line, so it is removed. Any other damage is a ConfigError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end_bytes = 0  # of the last whole line
        self._is_broken = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except FileNotFoundError:
            raise ConfigError(f"there is no folder {path.parent} for the journal: make it, or name another") from None
        except OSError as error:
            raise self._complain(error) from error
        try:
            self._lock()
            self._check_header()
            self.past = recall(self._read_lines())
            os.ftruncate(self._file, self._end_bytes)
        except OSError as error:
            self.close()
            raise self._complain(error) from error
        except ConfigError:
            self.close()
            raise

    def append(self, line: Line) -> None:
        """Return when the line is on the disk. After an OSError it may not be there, and no more lines can be added."""
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier line could not be written", str(self._path))
        try:
            self._write(_frame(msgspec.json.encode(line)))
        except OSError:
            self._is_broken = True  # the kernel may forget what it could not write: fsync would succeed the next time
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end_bytes)
            raise

    def close(self) -> None:
        """Close the file and release its lock. Closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = f"another coordinator writes the journal {self._path}: stop it, or name another file"
            raise ConfigError(words) from None

    def _check_header(self) -> None:
        """Check that the file is a journal. Write the header if the file is empty or has only a part of the header."""
        found = os.pread(self._file, len(_HEADER), 0)
        if found == _HEADER:
            self._end_bytes = len(_HEADER)
            return
        if not _HEADER.startswith(found):
            raise ConfigError(f"{self._path} is not a journal of this version of Phalanx: name another file")
        os.ftruncate(self._file, 0)
        self._write(_HEADER)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # else the file may be missing after a crash of the machine
        finally:
            os.close(folder)

    def _read_lines(self) -> Iterator[Line]:
        """Yield all whole lines, and move ``_end_bytes`` to the end of each."""
        size_bytes = os.fstat(self._file).st_size
        with open(self._file, "rb", closefd=False) as file:
            file.seek(self._end_bytes)
            for number, raw in enumerate(file, start=2):
                end_bytes = self._end_bytes + len(raw)
                text = _check(raw)
                if text is None and end_bytes == size_bytes:
                    return
                try:
                    line = _decoder.decode(text or b"")
                except (msgspec.DecodeError, UnicodeDecodeError):
                    words = f"line {number} of the journal {self._path} is altered or damaged"
                    raise ConfigError(f"{words}: restore the file, or start with another one") from None
                self._end_bytes = end_bytes
                yield line

    def _write(self, data: bytes) -> None:
        rest = data
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fsync(self._file)
        self._end_bytes += len(data)

    def _complain(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot use {self._path} as a journal: {error.strerror}; name another file")


def _frame(text: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _check(raw: bytes) -> bytes | None:
    """Return the text of a line, or None if the line is damaged."""
    text = raw[9:-1]
    return text if raw == _frame(text) else None
