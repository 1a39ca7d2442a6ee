"""Collects the facts of torch and of its GPUs."""

import itertools
from pathlib import Path
from types import ModuleType

from phalanx.doctor.facts import GpuFacts, TorchBuild
from phalanx.launch.env import read_settings

_MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_DEFAULT = "/tmp/nvidia-mps"  # noqa: S108 - where the daemon of MPS listens unless it is told otherwise


def collect_torch() -> TorchBuild | None:
    """Return the build of torch; None if it cannot be imported."""
    torch = _import_torch()
    if torch is None:
        return None
    return TorchBuild(
        version=str(torch.__version__),
        revision=str(torch.version.git_version or ""),
        cuda=str(torch.version.cuda or ""),
        instructions=str(torch.backends.cpu.get_cpu_capability()),
    )


def collect_gpus() -> GpuFacts:
    """Return the GPUs that torch can use."""
    has_nvidia = Path("/dev/nvidiactl").exists()
    torch = _import_torch()
    if torch is None or not torch.cuda.is_available():
        return GpuFacts(has_nvidia=has_nvidia)
    devices = range(torch.cuda.device_count())
    properties = [torch.cuda.get_device_properties(each) for each in devices]
    return GpuFacts(
        names=tuple(each.name for each in properties),
        memory_bytes=min(each.total_memory for each in properties),
        strangers=tuple(
            (one, other)
            for one, other in itertools.combinations(devices, 2)
            if not torch.cuda.can_device_access_peer(one, other)
        ),
        has_mps=Path(read_settings([_MPS_PIPES]).get(_MPS_PIPES, _MPS_DEFAULT), "control").exists(),
        has_nvidia=has_nvidia,
    )


def _import_torch() -> ModuleType | None:
    try:
        import torch  # noqa: PLC0415 - it takes seconds, and is not always there
    except (ImportError, OSError):  # the latter if a library that torch needs is broken
        return None
    return torch  # type: ignore[no-any-return]  # torch is skipped by mypy
