"""The output of several workers on one terminal: whole lines, each with its rank."""

from typing import BinaryIO

_LONGEST_LINE_BYTES = 1 << 16
_TAIL_BYTES = 1 << 16
_COLOURS = (36, 33, 32, 35, 34, 31)  # of ANSI terminals, the best to read first


class Lines:
    """Bytes in as they come, whole lines out. A line that does not end is cut, so that it cannot fill the memory."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= _LONGEST_LINE_BYTES:
            whole.append(self._rest[:_LONGEST_LINE_BYTES])
            self._rest = self._rest[_LONGEST_LINE_BYTES:]
        return whole

    def end(self) -> list[bytes]:
        """The last line, if it has no end."""
        last, self._rest = self._rest, b""
        return [last] if last else []


class Tail:
    """The last of what was written, for the report of a failure."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> None:
        """Keep the end of what came so far."""
        self._bytes = (self._bytes + data)[-_TAIL_BYTES:]

    def text(self) -> str:
        """What was kept; bytes that are no text are marked."""
        return self._bytes.decode(errors="replace")


def prefix(noun: str, number: int, size: int, *, is_coloured: bool) -> bytes:
    """What stands before each line of one of ``size`` workers, equally wide for all of them."""
    words = f"[{noun} {number:>{len(str(size - 1))}}]"
    if is_coloured:
        words = f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{words}\x1b[0m"
    return words.encode() + b" "


def write_lines(stream: BinaryIO, before: bytes, lines: list[bytes]) -> None:
    """Write lines at once, each behind ``before``."""
    if lines:
        stream.write(b"".join(before + line.removesuffix(b"\r") + b"\n" for line in lines))
        stream.flush()
