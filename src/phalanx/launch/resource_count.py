"""Counts what all processes of a run use, so that one can see whether failures leave anything behind. Linux only."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class ResourceCount(msgspec.Struct, frozen=True):
    """What a process and all its descendants use together. ``segments`` are those of shared memory, each once."""

    processes: int
    threads: int
    descriptors: int
    sockets: int
    segments: int


def count_resources(root: int) -> ResourceCount:
    """Count what the process ``root`` and all its descendants use. A process that ends meanwhile may count in part."""
    pids = find_descendants(root, _read_parents())
    threads = descriptors = sockets = 0
    segments: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            threads += len(list((_PROC / f"{pid}/task").iterdir()))
            opened = [_target(each) for each in (_PROC / f"{pid}/fd").iterdir()]
            descriptors += len(opened)
            sockets += sum(each.startswith("socket:") for each in opened)
            segments |= _list_segments((_PROC / f"{pid}/maps").read_text(encoding="utf-8", errors="replace"))
    return ResourceCount(len(pids), threads, descriptors, sockets, len(segments))


def find_descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    """Return ``root`` and all processes below it, where ``parents`` has the parent of each process."""
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _read_parents() -> dict[int, int]:
    parents = {}
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    return parents


def _target(descriptor: Path) -> str:
    with suppress(OSError):  # it was closed
        return str(descriptor.readlink())
    return ""


def _list_segments(maps: str) -> set[str]:
    """Return the inodes of the anonymous files of ours that are mapped."""
    return {line.split()[4] for line in maps.splitlines() if "/memfd:phalanx" in line}
