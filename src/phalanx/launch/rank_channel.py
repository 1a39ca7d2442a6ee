"""The pipe on which workers tell their launcher which ranks they have become."""

import os
import stat
from contextlib import suppress

_READ_BYTES = 1 << 16


class RankChannel:
    """The launcher's end of the pipe. Workers inherit ``writer``."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self.ranks: dict[int, int] = {}
        """The rank of each worker in the group that it joined last, by the worker's number."""

    def name_for(self, worker: int) -> str:
        """Return what the environment of a worker says about this pipe."""
        return f"{self.writer}:{os.fstat(self.writer).st_ino}:{worker}"

    def read_nowait(self) -> None:
        """Take what workers have told since the last call."""
        with suppress(BlockingIOError):
            for line in os.read(self._reader, _READ_BYTES).splitlines():
                with suppress(ValueError):  # a program may have written something else to this descriptor
                    worker, rank = map(int, line.split())
                    self.ranks[worker] = rank

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reader)
        os.close(self.writer)


def tell_rank(channel: str | None, rank: int) -> None:
    """Tell the launcher that this worker has joined as ``rank``; ``channel`` is what ``name_for`` returned there.

    A process that inherited only the environment of a worker has something else under that descriptor, or nothing.
    """
    if channel is None:
        return
    writer, inode, worker = map(int, channel.split(":"))
    with suppress(OSError):
        status = os.fstat(writer)
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == inode:
            os.write(writer, f"{worker} {rank}\n".encode())
