"""How many CPUs this process may use, which is often fewer than the machine has."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus(process: Path = Path("/proc/self/cgroup"), cgroups: Path = _CGROUPS) -> int:
    """Return how many CPUs the scheduler and the quota of the control group leave to this process, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        membership = process.read_text(encoding="utf-8")
    except OSError:  # not on Linux
        membership = ""
    quotas = [quota for folder in _folders(membership, cgroups) if (quota := _quota(folder)) is not None]
    return max(1, int(min([allowed, *quotas])))


def _folders(membership: str, cgroups: Path) -> Iterator[Path]:
    """Yield the folders that may limit the process: of its group and of all groups around it, in either version.

    A line has a number, controllers and a path: ``0::/job`` in version 2, ``4:cpu,cpuacct:/job`` in version 1. Inside
    a container the path may be one that only the outside has; then the container's root holds the limit.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = cgroups
        elif "cpu" in controllers.split(","):
            root = next((found for name in (controllers, "cpu") if (found := cgroups / name).is_dir()), cgroups)
        else:
            continue
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float | None:
    """Return the CPUs that a control group may use, or None if it has no limit."""
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return None if limit in ("max", "-1") else int(limit) / int(period)
