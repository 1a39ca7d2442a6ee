"""The file of a run's events: one JSON line each, appended by every coordinator that the run has had."""

import errno
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from phalanx.coordinator.events import Event
from phalanx.errors import ConfigError

_LONGEST_LINE = 2**24  # an epoch of 65,535 members
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_log = logging.getLogger("phalanx")


class EventLog:
    """The file to which a coordinator appends events, after the last complete line.

    No step depends on it: if it cannot be written, the run continues, the events are lost, and a warning says so once.
    A line survives the coordinator, but not a crash of the machine.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_warned = False
        try:
            self._file = _open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except FileNotFoundError:
            raise ConfigError(f"there is no folder {path.parent} for the events: make it, or name another") from None
        except OSError as error:
            raise self._refusal(error) from error
        try:
            self._cut_tail()
        except OSError as error:
            self.close()
            raise self._refusal(error) from error

    def write(self, events: Iterable[Event]) -> None:
        """Append events, stamped with the present time."""
        for event in events:
            self._append(msgspec.json.encode(replace(event, time=time.time())) + b"\n")

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        try:
            end_bytes = os.fstat(self._file).st_size
            rest = line
            try:
                while rest:
                    rest = rest[os.write(self._file, rest) :]
            except OSError:
                os.ftruncate(self._file, end_bytes)  # or the next line would not begin at its beginning
                raise
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                words = "cannot write events to %s: %s; the run continues, but this record of it will have gaps"
                _log.warning(words, self._path, error.strerror)

    def _cut_tail(self) -> None:
        """Remove a last line that a crash has cut."""
        end_bytes = os.fstat(self._file).st_size
        tail = os.pread(self._file, _LONGEST_LINE, max(0, end_bytes - _LONGEST_LINE))
        os.ftruncate(self._file, end_bytes - len(tail) + tail.rfind(b"\n") + 1)

    def _refusal(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write events to {self._path}: {error.strerror}; name another file")


def read_events(path: Path) -> Iterator[Event]:
    """Yield all events of a file, except for a last line that was cut. ConfigError if another line is damaged."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            number = 0
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if not line.endswith(b"\n") and not file.read(1):
                    return
                try:
                    yield _decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    words = f"line {number} of {path} is altered, damaged, or of a later release: {error}"
                    raise ConfigError(f"{words}; restore the file, or remove that line") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; are these the events of a run?") from error


def _open_regular(path: str | Path, flags: int) -> int:
    opened = os.open(path, flags | os.O_NONBLOCK, 0o666)  # a pipe could block for ever
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return opened
