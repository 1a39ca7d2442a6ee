"""The limits that control groups (cgroups) set to this process, in either version."""

from collections.abc import Iterator
from pathlib import Path

PROCESS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60  # version 1 says "no limit" with a number of about this size


def memory_limit_bytes(process: Path = PROCESS, cgroups: Path = CGROUPS) -> int | None:
    """Return how much memory the control groups of this process may use; None if they set no limit."""
    limits = [limit for folder in limiting_folders("memory", process, cgroups) if (limit := _memory_limit(folder))]
    return min(limits, default=None)


def limiting_folders(controller: str, process: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders that may limit the process: of its group and of all groups around it.

    A line has a number, controllers and a path: ``0::/job`` in version 2, ``4:cpu,cpuacct:/job`` in version 1. Inside
    a container the path may be one that only the outside has; then the container's root holds the limit.
    """
    try:
        membership = process.read_text(encoding="utf-8")
    except OSError:  # not on Linux
        return
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = cgroups
        elif controller in controllers.split(","):
            root = next((found for name in (controllers, controller) if (found := cgroups / name).is_dir()), cgroups)
        else:
            continue
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _memory_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            limit = int((folder / name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # not this version, or "max"
            continue
        return limit if limit < _UNLIMITED_BYTES else None
    return None
