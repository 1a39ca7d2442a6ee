"""Saying in words that the system has no descriptor or no memory left, which limit that is, and what helps."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.errors import OutOfResources

_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_MEMORY = (errno.ENOMEM, errno.ENOSPC, errno.ENOBUFS)


def is_shortage(error: OSError) -> bool:
    """Whether ``error`` says that something has run out."""
    return error.errno in (*_DESCRIPTORS, *_MEMORY)


def explain_shortage(error: OSError) -> str:
    """Return which limit was reached and what to do about it."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"this process may have {limit} open files and has them all: "
            f"raise the limit with `ulimit -n {2 * limit}`, or close groups and drop buffers that you no longer need"
        )
    if error.errno == errno.ENFILE:
        return "this machine has no open file left: raise fs.file-max, or end other programs"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    most = "" if limit == resource.RLIM_INFINITY else f" (this process may have {limit} bytes: see `ulimit -v`)"
    return f"{error.strerror}{most}: ask for less memory, or give this process or its container more"


@contextmanager
def shortage_in_words(what: str) -> Iterator[None]:
    """Raise ``OutOfResources`` where the block fails because something has run out; ``what`` says what failed."""
    try:
        yield
    except OSError as error:
        if not is_shortage(error):
            raise
        raise OutOfResources(f"{what}: {explain_shortage(error)}") from error
