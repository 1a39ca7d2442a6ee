"""Collects the facts of this machine. It decides nothing: ``judge_machine`` says what they mean."""

import ctypes
import os
import platform
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import phalanx
from phalanx.doctor.collect_torch import collect_gpus, collect_torch
from phalanx.doctor.collect_volumes import collect_disk, collect_shm
from phalanx.doctor.facts import MachineFacts, PortCheck, Setting
from phalanx.errors import OutOfResources
from phalanx.launch.env import LOOPBACK, read_settings
from phalanx.transport import memory_limit_bytes, own_hosts, usable_cpus, why_not_share_memory
from phalanx.wire import VERSION

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
)
_CONNECT_S = 3.0
_TIME_ERROR = 5  # linux/timex.h: the clock is not synchronised


def collect(runs: Path) -> MachineFacts:
    """Return the facts of this machine. Runs would be written to the folder ``runs``, where the disk is measured.

    This imports torch, if there is one, and takes a few seconds.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sizes = dict(_memory())
    return MachineFacts(
        name=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} on {platform.machine()}",
        processor=_processor(),
        python=platform.python_version(),
        phalanx=phalanx.__version__,
        numpy=np.__version__,
        wire=VERSION,
        torch=collect_torch(),
        gpus=collect_gpus(),
        cpus=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        memory_bytes=sizes.get("MemTotal", 0),
        memory_limit_bytes=memory_limit_bytes(),
        memory_free_bytes=sizes.get("MemAvailable", sizes.get("MemTotal", 0)),
        settings=tuple(Setting(name, value[:200]) for name, value in read_settings(_THREADS).items()),
        memory_sharing_fault=_memory_sharing_fault(),
        shm=collect_shm(),
        open_files=_finite(soft),
        most_open_files=_finite(hard),
        ports=tuple(_check_port(host) for host in own_hosts(LOOPBACK)),
        port_range=_port_range(),
        disk=collect_disk(runs),
        is_clock_synchronised=_is_clock_synchronised(),
    )


def _finite(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def _processor() -> str:
    """Return the model of the CPU, as people know it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not on Linux
        lines = []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor() or platform.machine())[:200]


def _memory() -> Iterator[tuple[str, int]]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not on Linux
        yield "MemTotal", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return
    for line in lines:
        name, _, size = line.partition(":")
        if size.endswith("kB"):
            yield name, 1024 * int(size.split()[0])


def _memory_sharing_fault() -> str:
    try:
        return why_not_share_memory() or ""
    except OutOfResources as error:
        return str(error)


def _check_port(host: str) -> PortCheck:
    """Listen on an address of this machine, and connect to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, 0), family=family) as listener:
            listener.settimeout(_CONNECT_S)
            with socket.create_connection(listener.getsockname()[:2], timeout=_CONNECT_S):
                listener.accept()[0].close()
    except OSError as error:
        return PortCheck(host, error.strerror or str(error))
    return PortCheck(host)


def _port_range() -> str:
    """Return the ports from which the system chooses, in words."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # not on Linux
        return "1024 to 65535"
    return f"{first} to {last}"


def _is_clock_synchronised() -> bool | None:
    """Return what the kernel says, which hears it from chrony, ntpd or systemd; None if it does not say."""
    if sys.platform != "linux":
        return None
    timex = ctypes.create_string_buffer(512)  # struct timex, larger than on any system; zeros ask for nothing to change
    state = ctypes.CDLL(None).adjtimex(timex)
    return None if state < 0 else state != _TIME_ERROR
