"""Memory that other processes of this host can map, and that leaves nothing behind.

A segment is an anonymous file. It exists only as long as a process has it open or mapped, so ``kill -9`` of all
processes frees it. Peers open it through its owner's descriptor table. The kernel lets in only processes of the same
user, in the same process namespace.
"""

import fcntl
import mmap
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path

from phalanx.errors import ConfigError
from phalanx.transport import membarrier
from phalanx.transport.shortage import explain_shortage, is_shortage, shortage_in_words

PAGE_BYTES = mmap.PAGESIZE
_APART = "/apart-"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a segment can be found: a descriptor of a process, and the inode, to prove that it is the right file."""

    pid: int
    descriptor: int
    inode: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory of this process that the other ranks of its host can map."""

    place: Place
    memory: mmap.mmap

    @classmethod
    def create(cls, size_bytes: int) -> "Segment":
        """Make zeroed memory of at least ``size_bytes``, rounded up to whole pages."""
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
                why = explain_shortage(error) if is_shortage(error) else error.strerror
                raise ConfigError(f"cannot have {size} bytes of shared memory: {why}") from error
            undo.pop_all()
        return cls(Place(os.getpid(), descriptor, os.fstat(descriptor).st_ino), memory)

    def release(self) -> None:
        """Close the descriptor; arrays that use the memory keep it alive."""
        os.close(self.place.descriptor)


def map_segment(place: Place, *, writable: bool) -> mmap.mmap:
    """Return the memory of another process's segment. Raises ``OSError`` if it is out of reach."""
    flags, prot = (os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE) if writable else (os.O_RDONLY, mmap.PROT_READ)
    with ExitStack() as undo, shortage_in_words("cannot map the memory of another rank"):
        descriptor = os.open(f"/proc/{place.pid}/fd/{place.descriptor}", flags | os.O_CLOEXEC)
        undo.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        if found.st_ino != place.inode:
            raise FileNotFoundError(ENOENT, f"process {place.pid} has another file at descriptor {place.descriptor}")
        return mmap.mmap(descriptor, found.st_size, prot=prot)


def is_there(place: Place) -> bool:
    """Whether the process that made a segment still has it open."""
    try:
        return os.stat(f"/proc/{place.pid}/fd/{place.descriptor}").st_ino == place.inode  # noqa: PTH116 - a link
    except OSError:
        return False


def can_share_memory() -> bool:
    """Whether this system has what segments need (Linux); elsewhere ranks talk over TCP."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def why_not_share_memory() -> str | None:
    """Return why this process cannot share memory with others, or None if it can. Tries what sharing needs."""
    if not can_share_memory():
        return "this system has no anonymous files (memfd_create), or no /proc"
    with ExitStack() as undo, shortage_in_words("cannot have shared memory"):
        try:
            descriptor = os.memfd_create("phalanx", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, descriptor)
            os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))
            if membarrier.IS_NEEDED:
                membarrier.register()
        except OSError as error:
            if is_shortage(error):
                raise
            return f"the system refuses what that needs: {error}"
    return None


def machine_of(host: str) -> str:
    """Return the machine of a host that is given by its identity."""
    return host.partition("/")[0]


def keep_apart(host: str) -> str:
    """Return the identity of a host of its own on the same machine, which shares memory with no other."""
    return f"{host}{_APART}{os.urandom(8).hex()}"


def are_together(hosts: Iterable[str]) -> bool:
    """Return whether hosts are one machine, or one simulated machine, even if they keep apart."""
    return len(set(map(simulated_machine_of, hosts))) == 1


def simulated_machine_of(host: str) -> str:
    """Return the machine, or the simulated machine, of a host that is given by its identity."""
    return host.partition(_APART)[0]


def why_apart(host: str, other: str) -> str | None:
    """Return why two hosts, given by their identities, share no memory although they are one machine; else None."""
    machine, namespace, user = (*host.split("/"), "", "")[:3]
    other_machine, other_namespace, other_user = (*other.split("/"), "", "")[:3]
    if machine != other_machine:
        return None
    if namespace != other_namespace:
        return "they run in different containers (process namespaces)"
    return "they run as different users" if user != other_user else None


def host_identity() -> str:
    """Return a word that two ranks share only if they can map each other's segments: same boot, namespace and user.

    Ranks in different network namespaces are different hosts, too: who separates networks wants machines.
    """
    if not can_share_memory():
        return keep_apart(socket.gethostname())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    processes, network = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net"))  # noqa: PTH116 - a link
    return f"{boot}/{processes}/{os.getuid()}/{network}"
