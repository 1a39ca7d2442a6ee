"""How many CPUs this process may use, which is often fewer than the machine has."""

import os
from pathlib import Path

from phalanx.transport.control_group import CGROUPS, PROCESS, limiting_folders


def usable_cpus(process: Path = PROCESS, cgroups: Path = CGROUPS) -> int:
    """Return how many CPUs the scheduler and the quota of the control group leave to this process, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folders = limiting_folders("cpu", process, cgroups)
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    return max(1, int(min([allowed, *quotas])))


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
