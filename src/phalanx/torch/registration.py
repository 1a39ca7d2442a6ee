"""Registers the backend with torch, and starts it however this process was started."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed

from phalanx.errors import ConfigError, ConnectError
from phalanx.group import Group
from phalanx.launch import connect
from phalanx.launch.env import LOOPBACK
from phalanx.torch.connecting import TorchWorld
from phalanx.torch.methods import NAME
from phalanx.torch.process_group import PhalanxProcessGroup
from phalanx.transport import own_hosts

_IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
_DEFAULT = timedelta(minutes=30)  # as Gloo
_ATTEMPT = timedelta(seconds=10)
_HOW_TO_START = (
    "start the script with `phalanx run -n 2 script.py`, torchrun, srun or mpirun; phalanx.torch.init() instead of "
    "init_process_group also works alone"
)

_world = TorchWorld()


def register() -> None:
    """Make torch know the backend. Registering twice is harmless."""
    if hasattr(distributed.Backend, NAME.upper()):
        return
    distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    _say_how_to_start()


def init(*, timeout: timedelta = _DEFAULT) -> None:
    """Connect to the processes that were started with this one, and call ``init_process_group("phalanx")``.

    These were started by ``phalanx run``, ``phalanx join``, torchrun, srun or mpirun. A process that none of them
    started is a group of one.
    """
    if distributed.is_initialized():
        raise ConfigError("torch.distributed is initialised already: call destroy_process_group first")
    group = connect(timeout_s=timeout.total_seconds())
    try:
        store = _share_store(group, timeout)
        _world.prepare(group)
        distributed.init_process_group(NAME, store=store, rank=group.rank, world_size=group.size, timeout=timeout)
    except BaseException:
        group.close()
        raise


def _create(asked: Any, _: object) -> Any:
    """Make a group for ``init_process_group`` or ``new_group``."""
    if getattr(asked, "enable_reconfigure", False):
        return _make_backend(None, asked)
    ranks = list(asked.global_ranks_in_group)
    if ranks:
        group = _world.open_subgroup(asked.store, ranks, asked.group_rank, asked.timeout)
    else:
        group = _world.open_default(asked.store, asked.group_rank, asked.group_size, asked.timeout)
    return PhalanxProcessGroup(group, _world.forget) if _IS_OLD else _make_backend(group, asked)


def _make_backend(group: Group | None, asked: Any) -> Any:
    from phalanx.torch.backend import PhalanxBackend  # noqa: PLC0415 - older versions of torch lack its base class

    return PhalanxBackend(group, asked.group_rank, asked.group_size, asked.timeout, _world.forget)


def _share_store(group: Group, timeout: timedelta) -> Any:
    """Return a store that all ranks of the group share; rank 0 serves it."""
    if group.size == 1:
        return distributed.HashStore()
    served, where = None, ""
    if group.rank == 0:
        served = distributed.TCPStore(LOOPBACK, 0, group.size, is_master=True, wait_for_workers=False, timeout=timeout)
        found = own_hosts(LOOPBACK)[::-1] if len(group.hosts) > 1 else (LOOPBACK,)
        where = " ".join((str(served.port), *found))
    port, *hosts = _tell_all(group, where).split()
    return served or _reach_store(hosts, int(port), group.size, timeout)


def _tell_all(group: Group, words: str) -> str:
    """Return the words of rank 0."""
    encoded = words.encode()
    length = group.broadcast(np.array([len(encoded)], np.int64))[0]
    told = np.frombuffer(encoded, np.uint8).copy() if group.rank == 0 else np.empty(length, np.uint8)
    return group.broadcast(told).tobytes().decode()


def _reach_store(hosts: Sequence[str], port: int, size: int, timeout: timedelta) -> Any:
    for host in hosts:
        with contextlib.suppress(RuntimeError):
            attempt = min(timeout, _ATTEMPT) if len(hosts) > 1 else timeout
            store = distributed.TCPStore(host, port, size, is_master=False, wait_for_workers=False, timeout=attempt)
            store.set_timeout(timeout)
            return store
    raise ConnectError(f"the store of rank 0 cannot be reached at port {port} of {', '.join(hosts)}: is it firewalled?")


def _say_how_to_start() -> None:
    """Add to torch's error about a missing environment variable how a script is started."""
    # torch.distributed.rendezvous is a function: its module is only found by name.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Callable[..., Iterator[Any]]] = module._rendezvous_handlers  # noqa: SLF001 - there is no other way
    original = handlers["env"]

    def with_note(*arguments: Any, **named: Any) -> Iterator[Any]:
        try:
            yield from original(*arguments, **named)
        except ValueError as error:
            error.add_note(_HOW_TO_START)
            raise

    handlers["env"] = with_note
