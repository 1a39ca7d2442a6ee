"""The log of a run: one line of JSON for each step."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from phalanx.errors import ConfigError
from phalanx.train.record import StepRecord

__all__ = ["StepLog", "StepRecord", "cut", "read_steps"]

_decoder: msgspec.json.Decoder[StepRecord] = msgspec.json.Decoder(StepRecord)


class StepLog:
    """The file to which a run appends a line for each step, after the last complete line.

    A line survives the process as soon as it is appended, but not a crash of the machine: only checkpoints do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; name another run directory") from error
        try:
            end_bytes = 0
            self._last = -1
            for record, end_bytes in _scan(path):  # noqa: B007 - the last one is used below
                self._last = record.step
            self._file.truncate(end_bytes)
        except BaseException:
            self._file.close()
            raise

    def append(self, record: StepRecord) -> None:
        """Append one step, which must come after the last one."""
        assert record.step > self._last, f"step {record.step} after step {self._last}: cut the log first"
        self._last = record.step
        rest = msgspec.json.encode(record) + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            words = f"cannot write step {record.step} to {self._path}: {error.strerror}"
            raise ConfigError(f"{words}; free some space, then continue with --resume {self._path.parent}") from error

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    os.truncate(path, end_bytes)


def _scan(path: Path) -> Iterator[tuple[StepRecord, int]]:
    """Yield each record and the offset at which its line ends."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; is it the log of a run?") from error
    end_bytes = 0
    for number, line in enumerate(lines, start=1):
        end_bytes += len(line)
        try:
            record = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                return
            raise ConfigError(f"line {number} of {path} is altered or damaged: {error}; restore the file") from error
        yield record, end_bytes


def _decode(line: bytes) -> StepRecord:
    if not line.endswith(b"\n"):
        raise msgspec.DecodeError("the line has no end")
    return _decoder.decode(line)
