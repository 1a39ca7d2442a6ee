"""Lets only one worker write into a run directory: the one that keeps the run in its latest epoch."""

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from phalanx.elastic import may_write
from phalanx.errors import ConfigError

_NAP_S = 0.01
_STUCK_S = 5.0  # the lock is held for milliseconds, unless its holder is stopped
_LONGEST_S = 30.0
_LINE_BYTES = 20


class Fence:
    """A file that says in which epoch a run was last written to.

    A worker that was stopped, given up and continued belongs to an older epoch. It finds a later one in the file, and
    must not write. A worker that was stopped just while it held the lock is killed: the run goes on without it anyway.
    Threads of one worker may be inside together.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._inside = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; name another run directory") from error

    @contextlib.contextmanager
    def enter(self, epoch: int) -> Iterator[bool]:
        """Keep other workers from writing during the block. Yield whether a worker of ``epoch`` may write."""
        with self._mutex:
            if not self._inside:
                self._lock()
            self._inside += 1
        try:
            with self._mutex:
                latest = self._read()
                if latest < epoch:
                    os.pwrite(self._file, str(epoch).encode().ljust(_LINE_BYTES), 0)
            yield may_write(latest, epoch)
        finally:
            with self._mutex:
                self._inside -= 1
                if not self._inside:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        began, has_killed = time.monotonic(), False
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            waited_s = time.monotonic() - began
            if waited_s > _STUCK_S and not has_killed and (pid := self._find_holder()):
                has_killed = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if waited_s > _LONGEST_S:
                raise ConfigError(
                    f"another process has held {self._path} for {waited_s:.0f} s: end it, then resume the run"
                )
            time.sleep(_NAP_S)

    def _read(self) -> int:
        """Return the latest epoch."""
        try:
            return int(os.pread(self._file, _LINE_BYTES, 0))
        except ValueError:
            return -1  # new, or torn by a crash: the next one to enter writes it

    def _find_holder(self) -> int | None:
        """Return the process that holds the lock, if it is another one of this machine and the system tells."""
        inode = str(os.fstat(self._file).st_ino)
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
                match line.split():
                    case [_, "FLOCK", _, _, pid, place, *_] if place.rpartition(":")[2] == inode:
                        return int(pid) if int(pid) not in (0, os.getpid()) else None
        return None
