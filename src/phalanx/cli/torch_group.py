"""The group of torch.distributed that the workers of ``phalanx train --engine torch`` are in."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from phalanx.errors import ConfigError, ConnectError
from phalanx.launch.env import Launch
from phalanx.launch.rank_channel import tell_rank
from phalanx.launch.torch_env import has_torch_address, keep_gloo_local, read_local_rank
from phalanx.parallel import TorchExchange
from phalanx.train.config import Config, Device, TorchBackend
from phalanx.train.loop import choose_device

_TIMEOUT_S = 600.0
_LONGER_S = 60.0  # for torch: our own errors name the rank, so they come first


def choose_own_device(config: Config, *, is_local: bool) -> torch.device:
    """Return the device of this worker. With NCCL every worker of a machine has a GPU of its own.

    Launchers may show each worker its own GPU only. If the run ``is_local``, all workers see all of them.
    """
    backend = config.run.torch_backend
    if backend is TorchBackend.NCCL and config.run.device is Device.CPU:
        raise ConfigError("NCCL exchanges between GPUs: leave out --device cpu, or pass --torch-backend gloo")
    device = choose_device(Device.CUDA if backend is TorchBackend.NCCL else config.run.device)
    if device.type == "cpu":
        return device
    count, number = torch.cuda.device_count(), read_local_rank()
    if is_local and number >= count and _choose_backend(backend, device) is TorchBackend.NCCL:
        words = f"NCCL needs a GPU for each worker, and this machine has {count}"
        raise ConfigError(f"{words}: start fewer workers, or pass --torch-backend gloo")
    return torch.device("cuda", number % count)


@contextmanager
def join_torch(config: Config, device: torch.device, launch: Launch, store: str | None) -> Iterator[TorchExchange]:
    """Join the group, and leave it in the end. ``store`` is a file, or else the launcher says where the group is."""
    backend = _choose_backend(config.run.torch_backend, device)
    if not dist.is_backend_available(backend.value):
        words = f"this build of torch has no {backend.value}"
        raise ConfigError(f"{words}: pass another --torch-backend, or install a build that has it")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        _begin(backend.value, launch, store)
    except (RuntimeError, ValueError) as error:  # as torch says everything
        words = str(error).partition("\n")[0]
        raise ConnectError(
            f"the workers did not meet in a torch group: {words}; look at what the others wrote"
        ) from error
    with TorchExchange(lanes=config.train.lanes, timeout_s=_TIMEOUT_S) as exchange:
        tell_rank(launch.channel, exchange.rank)
        yield exchange
    with suppress(RuntimeError):  # others may have left before
        dist.destroy_process_group()


def _choose_backend(backend: TorchBackend, device: torch.device) -> TorchBackend:
    if backend is not TorchBackend.AUTO:
        return backend
    has_nccl = device.type == "cuda" and dist.is_nccl_available()
    return TorchBackend.NCCL if has_nccl else TorchBackend.GLOO


def _begin(backend: str, launch: Launch, store: str | None) -> None:
    """Meet the other workers: by a file, as MPI does it, by torch's own variables, or at an address of the launcher."""
    timeout = timedelta(seconds=_TIMEOUT_S + _LONGER_S)
    if backend == TorchBackend.MPI.value or (store is None and has_torch_address()):
        dist.init_process_group(backend, timeout=timeout)
        return
    assert launch.rank is not None, "a torch group does not give ranks"
    assert launch.size is not None, "a torch group does not change"
    if store is not None:
        keep_gloo_local()
        found = dist.FileStore(store, launch.size)
    elif launch.size == 1:
        found = dist.HashStore()
    else:
        where = launch.coordinator[0]
        found = dist.TCPStore(where.host, where.port, launch.size, is_master=launch.rank == 0, timeout=timeout)
    dist.init_process_group(backend, store=found, rank=launch.rank, world_size=launch.size, timeout=timeout)
