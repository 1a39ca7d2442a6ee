"""Memory that other processes of this host can map, and that leaves nothing behind.

A segment is an anonymous file that exists only as long as somebody holds it open or mapped, so ``kill -9``
of everybody frees it. Peers find it through its owner's descriptor table, which the kernel guards: only
processes of the same user, in the same process namespace, get in.
"""

import fcntl
import mmap
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EMFILE, ENFILE
from pathlib import Path

from phalanx.errors import ConfigError

PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a segment can be found: a descriptor of a process, and the file number that proves it is the one meant."""

    pid: int
    descriptor: int
    inode: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory of this process that its host's other ranks can map."""

    place: Place
    memory: mmap.mmap

    @classmethod
    def create(cls, size_bytes: int) -> "Segment":
        """Fresh zeroed memory of at least ``size_bytes``, rounded up to whole pages."""
        size = max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES
        with ExitStack() as undo:
            try:
                descriptor = os.memfd_create("phalanx", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                undo.callback(os.close, descriptor)
                os.ftruncate(descriptor, size)
                # Sealed: a peer that shrank it would kill every reader with SIGBUS.
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                memory = mmap.mmap(descriptor, size)
            except OSError as error:
                advice = "keep buffers and use them again" if error.errno in (EMFILE, ENFILE) else "ask for less"
                raise ConfigError(f"cannot have {size} bytes of shared memory: {error.strerror}; {advice}") from error
            undo.pop_all()
        return cls(Place(os.getpid(), descriptor, os.fstat(descriptor).st_ino), memory)

    def release(self) -> None:
        """Give up this process's hold on the name; arrays that use the memory keep it alive."""
        os.close(self.place.descriptor)


def map_segment(place: Place, *, writable: bool) -> mmap.mmap:
    """The memory of another process's segment. Raises ``OSError`` if it is out of reach."""
    flags = os.O_RDWR if writable else os.O_RDONLY
    descriptor = os.open(f"/proc/{place.pid}/fd/{place.descriptor}", flags | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_ino != place.inode:
            raise FileNotFoundError(f"process {place.pid} holds another file at descriptor {place.descriptor}")
        return mmap.mmap(
            descriptor, found.st_size, prot=mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        )
    finally:
        os.close(descriptor)


def can_share_memory() -> bool:
    """Whether this system has what segments need (Linux); elsewhere ranks talk over TCP."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def host_identity() -> str:
    """A word that is equal on two ranks only if they can map each other's segments: same boot, namespaces and user."""
    if not can_share_memory():
        return f"{socket.gethostname()}/{os.urandom(8).hex()}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"  # noqa: PTH116 - the link itself is the name
