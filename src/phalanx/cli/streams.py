"""Standard output and error of a command, which may be closed, full, unread, or unable to show a letter."""

import errno
import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Output(io.RawIOBase):
    """A descriptor to write to. When a write fails, the descriptor becomes /dev/null, and ``lost`` says why.

    A failure is raised, unless the output is optional. ``is_optional`` and ``is_optional_unread`` say so: the latter is
    for output that nobody reads any longer, as in ``| head``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.lost: OSError | None = None
        self.is_optional = False
        self.is_optional_unread = False

    @property
    def is_unread(self) -> bool:
        """Whether the output is lost because its reader went away."""
        return self.lost is not None and self.lost.errno == errno.EPIPE

    @property
    def has_failed(self) -> bool:
        """Whether output is lost that is not optional."""
        return self.lost is not None and not (self.is_optional_unread if self.is_unread else self.is_optional)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether this is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:  # a buffer, which has a type only since Python 3.12
        """Write all or a part, and return how much."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # another program has made the terminal non-blocking
            select.select([], [self._descriptor], [])
            return 0
        except OSError as error:
            self.lost = error
            with open(os.devnull, "wb") as null:  # noqa: PTH123 - no path of anybody
                os.dup2(null.fileno(), self._descriptor)
            if self.has_failed:
                raise
            return len(data)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let a command write to standard output and error, whatever they are.

    A letter that the encoding lacks is escaped, and a descriptor that is closed is opened as /dev/null. If nobody reads
    the output, the command ends quietly with status 141, as by SIGPIPE. If the output is lost for another reason, the
    command ends with one line and status 1.
    """
    outputs = _open_streams()
    try:
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
    except (OSError, SystemExit):  # typer, too, ends the command if nobody reads the output
        failed = [output for output in outputs if output.has_failed]
        if failed and failed[0].is_unread:
            sys.exit(128 + signal.SIGPIPE)
        for output in outputs:
            if output.lost and not output.is_unread:
                print(f"phalanx: cannot write the output: {output.lost.strerror}", file=sys.stderr)
        if not failed:
            raise
        sys.exit(1)


def go_on_without_output(*, unread: bool = True) -> None:
    """From now on, continue if output cannot be written; without ``unread``, end if nobody reads it."""
    for stream in (sys.stdout, sys.stderr):
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if isinstance(raw, Output):
            raw.is_optional, raw.is_optional_unread = True, unread


def open_text(output: Output, encoding: str, *, is_line_buffered: bool) -> TextIO:
    """Return a text stream that writes to ``output``. It escapes letters that the encoding lacks."""
    buffer = io.BufferedWriter(output)
    return io.TextIOWrapper(buffer, encoding, errors="backslashreplace", line_buffering=is_line_buffered)


def _open_streams() -> list[Output]:
    """Replace ``sys.stdout`` and ``sys.stderr``, unless somebody has replaced them already."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # else the next socket would get this number
            os.open(os.devnull, os.O_RDWR)
    outputs = []
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        old = getattr(sys, name)
        if old is getattr(sys, f"__{name}__"):
            outputs.append(Output(descriptor))
            encoding = old.encoding if old else "utf-8"
            setattr(sys, name, open_text(outputs[-1], encoding, is_line_buffered=bool(old and old.line_buffering)))
    return outputs
