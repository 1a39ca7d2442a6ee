"""The environment variables of torch.distributed: what a group reads, and what torchrun would set for our workers.

Our own ``connect`` never reads what is set here.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.errors import ConfigError
from phalanx.wire import Address

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOCAL_RANKS = ("PHALANX_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def read_local_rank() -> int:
    """Return the number of this process among those of its machine; 0 if no launcher says so."""
    for name in _LOCAL_RANKS:
        if text := os.environ.get(name):
            if not text.isdecimal():
                raise ConfigError(f"{name} must be a number of 0 or more, not {text!r}")
            return int(text)
    return 0


def has_torch_address() -> bool:
    """Return whether the environment says where ``torch.distributed.init_process_group`` finds its group."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def keep_gloo_local() -> None:
    """Let Gloo use the loopback interface, unless the user has named another: it lets anybody connect."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")


def torch_variables(
    rank: int | None, size: int | None, local: tuple[int, int] | None, master: Address | None
) -> dict[str, str]:
    """Return these variables, as far as their values are known; see ``Launch``."""
    told: dict[str, str] = {}
    if rank is not None:
        told |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    if local is not None:
        told |= {"LOCAL_RANK": str(local[0]), "LOCAL_WORLD_SIZE": str(local[1])}
    if master is not None:
        told |= {"MASTER_ADDR": master.host, "MASTER_PORT": str(master.port)}
    return told


def publish(variables: dict[str, str]) -> None:
    """Set variables of this process, for code that reads them later."""
    os.environ.update(variables)


@contextmanager
def reserve_port(host: str) -> Iterator[Address]:
    """Keep a port of this machine from others during the block, except from programs that reuse addresses.

    torch does, when rank 0 listens at MASTER_PORT.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield Address(host, holder.getsockname()[1])
