"""The log of a run: one line of JSON for each step."""

import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Self

import msgspec

from phalanx.errors import ConfigError
from phalanx.plain_file import open_plain
from phalanx.train.record import StepRecord

__all__ = ["StepCounter", "StepLog", "StepRecord", "cut", "read_steps"]

_LONGEST_LINE = 2**16
_decoder: msgspec.json.Decoder[StepRecord] = msgspec.json.Decoder(StepRecord)


class StepLog:
    """The file to which a run appends a line for each step, after the last complete line.

    A line survives the process as soon as it is appended, but not a crash of the machine: only checkpoints do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open_plain(path, "ab")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; name another run directory") from error
        try:
            end_bytes = 0
            self.last: StepRecord | None = None
            for self.last, end_bytes in _scan(path):  # noqa: B007 - the last ones are used afterwards
                pass
            self._file.truncate(end_bytes)
        except BaseException:
            self._file.close()
            raise

    def append(self, record: StepRecord) -> None:
        """Append one step, which must come after the last one."""
        if self.last is not None:
            assert record.step > self.last.step, f"step {record.step} after step {self.last.step}: cut the log first"
        self.last = record
        self._check_place(record)
        rest = msgspec.json.encode(record) + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            words = f"cannot write step {record.step} to {self._path}: {error.strerror}"
            raise ConfigError(f"{words}; free some space, then continue with --resume {self._path.parent}") from error

    def _check_place(self, record: StepRecord) -> None:
        """Notice that the run directory was removed: the system lets a process write to a file that has no name."""
        try:
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                return
        except OSError:
            pass
        words = f"cannot write step {record.step} to {self._path}: it was removed or moved while the run was going on"
        raise ConfigError(f"{words}; put it back and resume the run, or start again")

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StepCounter:
    """Counts the steps in a log that grows, by reading only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = self._steps = 0

    def count(self) -> int:
        """Return how many steps there are now. A log that was cut is read again."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read_bytes:
                    self._read_bytes = self._steps = 0
                file.seek(self._read_bytes)
                new = file.read()
        except OSError:
            return 0  # nothing was logged yet
        self._read_bytes += len(new)
        self._steps += new.count(b"\n")
        return self._steps


def read_steps(path: Path) -> list[StepRecord]:
    """Return all steps of a log, except for a last line that is incomplete."""
    return [record for record, _ in _scan(path)]


def cut(path: Path, step: int) -> None:
    """Remove the records from ``step`` on, all at once: the run writes them again."""
    end_bytes = 0
    for record, record_end_bytes in _scan(path):
        if record.step >= step:
            break
        end_bytes = record_end_bytes
    try:
        os.truncate(path, end_bytes)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; fix that, then try again") from error


def _scan(path: Path) -> Iterator[tuple[StepRecord, int]]:
    """Yield each record and the offset at which its line ends. Each step must come after the one before."""
    number, end_bytes, last = 0, 0, -1
    try:
        with BufferedReader(open_plain(path)) as file:
            while line := file.readline(_LONGEST_LINE):
                number, end_bytes = number + 1, end_bytes + len(line)
                try:
                    record = _decode(line, last)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not file.read(1):  # the last line may be incomplete
                        return
                    words = f"line {number} of {path} is altered or damaged: {error}"
                    raise ConfigError(f"{words}; restore the file") from error
                last = record.step
                yield record, end_bytes
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; is it the log of a run?") from error


def _decode(line: bytes, last: int) -> StepRecord:
    if not line.endswith(b"\n"):
        raise msgspec.DecodeError("the line has no end")
    record = _decoder.decode(line)
    if record.step <= last:
        raise msgspec.DecodeError(f"step {record.step} comes after step {last}")
    return record
