"""Printing the output of several workers: whole lines, each marked with its rank."""

import sys
from pathlib import Path
from typing import BinaryIO

from phalanx.errors import ConfigError
from phalanx.launch.verdict import Name

_LONGEST_LINE_BYTES = 1 << 16
_TAIL_BYTES = 1 << 16
_COLOURS = (36, 33, 32, 35, 34, 31)  # ANSI colours, the most readable first


class Lines:
    """Turns bytes into whole lines. A very long line is cut, so that it cannot fill the memory."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without their line ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= _LONGEST_LINE_BYTES:
            whole.append(self._rest[:_LONGEST_LINE_BYTES])
            self._rest = self._rest[_LONGEST_LINE_BYTES:]
        return whole

    def end(self) -> list[bytes]:
        """Return the last line, if it has no line end."""
        last, self._rest = self._rest, b""
        return [last] if last else []


class Tail:
    """The last part of a worker's output, for the report of a failure."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> None:
        """Add output, and keep only the last part."""
        self._bytes = (self._bytes + data)[-_TAIL_BYTES:]

    def text(self) -> str:
        """Return the output that was kept. Bytes that are not text are replaced."""
        return self._bytes.decode(errors="replace")


class RankLogs:
    """A file for each rank in ``folder``, with all that it writes. Lines are added to files that are there.

    What a worker writes before its rank is known is in a file with its number. If a file cannot be written, one line on
    stderr says so, and the run goes on without it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {folder} for the logs: {error.strerror}; name another --log-dir") from error

    def write(self, name: Name, lines: list[bytes]) -> None:
        """Add lines of the worker that is called ``name`` now."""
        if not lines or self._has_failed:
            return
        file = self._folder / f"{name.noun}-{name.number}.log"
        try:
            with file.open("ab") as log:
                log.write(b"".join(line.removesuffix(b"\r") + b"\n" for line in lines))
        except OSError as error:
            self._has_failed = True
            sys.stderr.write(f"phalanx: cannot write {file}: {error.strerror}; the run goes on without logs\n")


def prefix(name: Name, size: int, *, is_coloured: bool) -> bytes:
    """Return the prefix of each line of one of ``size`` workers. It is equally wide for all workers."""
    words = f"[{name.noun} {name.number:>{len(str(size - 1))}}]"
    if is_coloured:
        words = f"\x1b[{_COLOURS[name.number % len(_COLOURS)]}m{words}\x1b[0m"
    return words.encode() + b" "


def write_lines(stream: BinaryIO, before: bytes, lines: list[bytes]) -> None:
    """Write lines, each after the prefix ``before``, in one write."""
    if lines:
        stream.write(b"".join(before + line.removesuffix(b"\r") + b"\n" for line in lines))
        stream.flush()
