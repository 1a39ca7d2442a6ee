"""Memory of a GPU that all ranks of a host can read: each rank makes its own, and opens that of the others."""

import hashlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from phalanx.buffers import Array
from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.device import cudart
from phalanx.parallel.device.route import Gpu, Meeting, Route, choose_route, without_sharing

_IDENTITY_BYTES = 16
_WORDS_BYTES = 128

_retired: list[int] = []  # memory that this rank has exported and uses no more: others may still have it open


class Shared(NamedTuple):
    """The memory that this rank has exported, as bytes, and that of every other rank."""

    own: torch.Tensor
    peers: dict[int, torch.Tensor]

    def of(self, rank: int) -> torch.Tensor:
        """Return the memory of a rank."""
        return self.peers.get(rank, self.own)


def share(
    group: Group,
    device: torch.device,
    nbytes: int,
    *,
    is_elastic: bool,
    is_left_out: bool,
    is_checked: bool = False,
) -> tuple[Route, Shared | None]:
    """Make memory of ``nbytes`` that the other ranks can read, and open theirs; all ranks call this together.

    Ranks may ask for different lengths. Return where the gradients of these ranks meet; if that is not on the GPU,
    there is no such memory. This rank's memory is zeroed. Nobody can write the memory of another rank.
    """
    gpus = [Gpu(b"")] if group.size == 1 else _ask_all(group, device, is_left_out=is_left_out)
    route = choose_route(gpus, len(group.hosts), is_elastic=is_elastic, is_checked=is_checked)
    if group.size == 1:
        return route, None
    if route.meeting is not Meeting.DEVICE:
        return route, None
    with torch.cuda.device(device):
        try:
            return route, _open_all(group, device, nbytes)
        except ConfigError as error:  # the same on all ranks
            return without_sharing(group.size, str(error)), None


def _ask_all(group: Group, device: torch.device, *, is_left_out: bool) -> list[Gpu]:
    """Return what every rank says about its GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    name = str(torch.cuda.get_device_properties(index).uuid).encode()
    said = np.zeros(2 + _IDENTITY_BYTES, np.uint8)
    said[:2] = cudart.has_mps(index), is_left_out
    said[2:] = np.frombuffer(hashlib.blake2b(name, digest_size=_IDENTITY_BYTES).digest(), np.uint8)
    rows: list[Array] = list(group.all_gather(said))
    return [Gpu(row[2:].tobytes(), bool(row[0]), bool(row[1])) for row in rows]


def _open_all(group: Group, device: torch.device, nbytes: int) -> Shared:
    """Make this rank's memory and open that of the others. If a rank cannot, all raise the same ConfigError."""
    made: list[torch.Tensor] = []

    def make() -> bytes:
        address = cudart.allocate(nbytes)
        made.append(_see(address, nbytes, device, _retired.append))
        made[0].zero_()
        torch.cuda.current_stream(device).synchronize()  # before others can look
        return cudart.export(address) + nbytes.to_bytes(8, "little")

    told = _tell_all(group, make, cudart.HANDLE_BYTES + 8)
    peers: dict[int, torch.Tensor] = {}

    def open_peers() -> bytes:
        for rank, row in enumerate(told):
            if rank != group.rank:
                address = cudart.open_exported(row[: cudart.HANDLE_BYTES])
                length = int.from_bytes(row[cudart.HANDLE_BYTES :], "little")
                peers[rank] = _see(address, length, device, lambda address: _close(address, device))
        return b""

    _tell_all(group, open_peers, 0)
    while _retired:  # all ranks have met since they used it
        cudart.free(_retired.pop())
    return Shared(made[0], peers)


def _tell_all(group: Group, act: Callable[[], bytes], length: int) -> list[bytes]:
    """Act, and return what every rank got; if one failed, all raise the same ConfigError, which has its words."""
    said: Array = np.zeros(1 + _WORDS_BYTES + length, np.uint8)
    try:
        found = act()
    except ConfigError as error:
        words = str(error).encode()[:_WORDS_BYTES]
        said[0] = 1
        said[1 : 1 + len(words)] = np.frombuffer(words, np.uint8)
    else:
        said[1 + _WORDS_BYTES :] = np.frombuffer(found, np.uint8)
    rows = group.all_gather(said)
    for rank, row in enumerate(rows):
        if row[0]:
            words = row[1 : 1 + _WORDS_BYTES].tobytes().rstrip(b"\0")
            raise ConfigError(f"rank {rank} cannot share memory of its GPU: {words.decode(errors='replace')}")
    return [row[1 + _WORDS_BYTES :].tobytes() for row in rows]


class _Memory:
    """Memory of a GPU as torch takes it. It is released when the last tensor that uses it is gone."""

    def __init__(self, address: int, nbytes: int, release: Callable[[int], Any]) -> None:  # Any: it is not used
        described = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = described
        weakref.finalize(self, release, address).atexit = False


def _see(address: int, nbytes: int, device: torch.device, release: Callable[[int], Any]) -> torch.Tensor:
    return torch.as_tensor(_Memory(address, nbytes, release), device=device)


def _close(address: int, device: torch.device) -> None:
    """Wait for what this rank's GPU still reads there, and close it."""
    torch.cuda.synchronize(device)
    cudart.close_exported(address)
