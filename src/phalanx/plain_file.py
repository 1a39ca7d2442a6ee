"""Opening files that somebody else may have put there: only regular files, and no more bytes than expected."""

import errno
import os
import stat
from io import FileIO
from pathlib import Path
from typing import cast


def open_plain(path: Path, mode: str = "rb") -> FileIO:
    """Open a regular file, unbuffered. Anything else is an OSError: a pipe may block for ever, a device never end."""
    return cast("FileIO", open(path, mode, buffering=0, opener=_open_regular))  # as of any binary mode


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file. A file of more than ``most_bytes`` is an OSError."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return content


def _open_regular(path: str, flags: int) -> int:
    opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    kind = os.fstat(opened).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # a directory is refused by open itself
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return opened
