"""Collects the facts of places for files: where runs are written, and shared memory."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from phalanx.doctor.facts import VolumeFacts

_SHM = Path("/dev/shm")  # noqa: S108 - torch's DataLoader uses it, whatever we think of it
_WRITE_BYTES = 32 << 20
_WRITE_S = 3.0  # a disk that is slower than this is measured with less
_CHUNK_BYTES = 4 << 20
_SYNCS = 5


def collect_shm(path: Path = _SHM) -> VolumeFacts:
    """Return the facts of the folder through which the workers of a DataLoader pass tensors."""
    if sys.platform != "linux":
        return VolumeFacts(str(path), free_bytes=2**62 - 1)  # there is no such folder, and nobody needs it
    try:
        if not os.path.ismount(path):
            return VolumeFacts(str(path), fault="nothing is mounted there")
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"phalanx")
            file.flush()
        return VolumeFacts(str(path), _kind(path), shutil.disk_usage(path).free)
    except OSError as error:
        return VolumeFacts(str(path), fault=error.strerror or str(error))


def collect_disk(folder: Path) -> VolumeFacts:
    """Return the facts of the disk that ``folder`` is on, or would be. This writes up to 32 MiB and removes them."""
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            bytes_s = _write(file.fileno())
            sync_s = median(_sync(file.fileno()) for _ in range(_SYNCS))
        return VolumeFacts(str(place), _kind(place), shutil.disk_usage(place).free, bytes_s, sync_s)
    except OSError as error:
        return VolumeFacts(str(place), fault=error.strerror or str(error))


def _write(descriptor: int) -> float:
    """Return the bytes per second that reach the disk."""
    began, written, data = time.perf_counter(), 0, os.urandom(_CHUNK_BYTES)
    while written < _WRITE_BYTES and time.perf_counter() - began < _WRITE_S:
        written += os.write(descriptor, data)
        os.fdatasync(descriptor)
    return written / (time.perf_counter() - began)


def _sync(descriptor: int) -> float:
    began = time.perf_counter()
    os.write(descriptor, b"x" * 200)
    os.fdatasync(descriptor)
    return time.perf_counter() - began


def _kind(path: Path) -> str:
    """Return the type of the file system, or nothing if the system does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found, longest = "", -1
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        if path.is_relative_to(point) and len(point) >= longest:
            found, longest = kind, len(point)
    return found
