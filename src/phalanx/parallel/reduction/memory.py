"""The memory of buckets: where gradients are stored, where the exchange reads them, and where their mean is."""

import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array, DType
from phalanx.errors import ConfigError
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.layout import Bucket
from phalanx.transport import allocate_pages

NARROW = (torch.bfloat16, torch.float16)
"""Types whose values are added up and updated in f32."""

_TYPES = {torch.float32: DType.F32, torch.float64: DType.F64, torch.bfloat16: DType.BF16, torch.float16: DType.F16}
_TENSOR_TYPES = {dtype: tensor_type for tensor_type, dtype in _TYPES.items()}
_ALIGNED_BYTES = 512


class BucketMemory(Protocol):
    """The memory of one bucket.

    ``pieces`` and ``mean`` are tensors on the model's device; ``host_pieces`` and ``host_mean`` are the arrays that the
    exchange works on. On a CPU both are the same memory.
    """

    pieces: torch.Tensor
    mean: torch.Tensor
    host_pieces: Array
    host_mean: Array

    def start_copy_out(self) -> None:
        """Start to copy the pieces to the host; called by the thread that wrote them."""

    def wait_for_copy_out(self) -> None:
        """Wait until the pieces are on the host."""

    def start_copy_in(self) -> None:
        """Start to copy the mean to the device; called by the thread that exchanges."""

    def wait_for_copy_in(self) -> None:
        """Make later work of this thread on the mean wait until the mean is on the device."""


def allocate_buckets(
    buckets: Sequence[Bucket], rows: int, exchange: Exchange, device: torch.device, *, is_borrowing: bool
) -> list[BucketMemory]:
    """Return the memory of all buckets, for ``rows`` pieces each; all ranks call this together.

    All pieces lie in one allocation, and so do all means that the ranks of a host share, so few descriptors are open.
    If gradients are borrowed instead of copied, all buckets use the same memory, which then stays in cache. Only the
    owned blocks of a sharded mean are ever written, so the rest of it takes up no memory.
    """
    stream = _make_stream(device)
    sizes = [rows * bucket.length * bucket.dtype.itemsize for bucket in buckets]
    pieces = _carve(exchange, [max(sizes, default=0)] if is_borrowing else sizes, shared=False, stream=stream)
    is_shared = exchange.size > 1  # also by a rank that is alone on its host: all ranks make the same calls
    shared = [bucket.length * bucket.dtype.itemsize for bucket in buckets if is_shared and not bucket.is_sharded]
    means = iter(_carve(exchange, shared, shared=True, stream=stream))
    found: list[BucketMemory] = []
    for number, bucket in enumerate(buckets):
        own = pieces[0][: sizes[number]] if is_borrowing else pieces[number]
        host_pieces = own.view(bucket.dtype.numpy).reshape(rows, bucket.length)
        if exchange.size == 1:
            host_mean = host_pieces[0]
        elif is_shared and not bucket.is_sharded:
            host_mean = next(means).view(bucket.dtype.numpy)
        else:
            host_mean = allocate_pages(bucket.length * bucket.dtype.itemsize).view(bucket.dtype.numpy)
        tensor_type = _TENSOR_TYPES[bucket.dtype]
        if stream is None:
            found.append(HostMemory(host_pieces, host_mean, tensor_type))
        else:
            found.append(DeviceMemory(host_pieces, host_mean, tensor_type, stream))
    return found


def dtype_of(tensor: torch.Tensor) -> DType:
    """Return the type of a tensor's elements, as the exchange knows it."""
    found = _TYPES.get(tensor.dtype)
    if found is None:
        known = ", ".join(str(each).removeprefix("torch.") for each in _TYPES)
        raise ConfigError(f"parameters are {known}, not {str(tensor.dtype).removeprefix('torch.')}")
    return found


def as_tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return the array's memory as a tensor; bf16 lies in arrays as uint16."""
    return torch.from_numpy(array.view(np.uint16)).view(dtype) if array.dtype == np.uint16 else torch.from_numpy(array)


class HostMemory:
    """The memory of a bucket of a model on the CPU: gradients are stored where the exchange reads them."""

    def __init__(self, host_pieces: Array, host_mean: Array, dtype: torch.dtype) -> None:
        self.host_pieces, self.host_mean = host_pieces, host_mean
        self.pieces, self.mean = as_tensor(host_pieces, dtype), as_tensor(host_mean, dtype)

    def start_copy_out(self) -> None:
        """Nothing to do."""

    wait_for_copy_out = start_copy_in = wait_for_copy_in = start_copy_out


class DeviceMemory:
    """The memory of a bucket of a model on a GPU: pieces and mean are staged through pinned memory of the host."""

    def __init__(self, host_pieces: Array, host_mean: Array, dtype: torch.dtype, stream: "torch.cuda.Stream") -> None:
        self.host_pieces, self.host_mean = host_pieces, host_mean
        self.pieces = torch.zeros(host_pieces.shape, dtype=dtype, device=stream.device)
        self.mean = torch.zeros(host_mean.shape, dtype=dtype, device=stream.device)
        pin(host_pieces, stream.device)
        pin(host_mean, stream.device)
        self._staged_pieces, self._staged_mean = as_tensor(host_pieces, dtype), as_tensor(host_mean, dtype)
        self._stream = stream
        self._is_out, self._is_in = torch.cuda.Event(), torch.cuda.Event()

    def start_copy_out(self) -> None:
        """Start the copy on its own stream, after all work that was queued on the device so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self.pieces.device))
        with torch.cuda.stream(self._stream):
            self._staged_pieces.copy_(self.pieces, non_blocking=True)
            self._is_out.record()

    def wait_for_copy_out(self) -> None:
        """Wait for that copy."""
        self._is_out.synchronize()

    def start_copy_in(self) -> None:
        """Start to copy the mean to the device."""
        with torch.cuda.stream(self._stream):
            self.mean.copy_(self._staged_mean, non_blocking=True)
            self._is_in.record()

    def wait_for_copy_in(self) -> None:
        """Make the current stream wait for that copy."""
        torch.cuda.current_stream(self.mean.device).wait_event(self._is_in)


def is_staged(device: torch.device) -> bool:
    """Return whether tensors on this device are exchanged through memory of the host."""
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"models are trained on cpu or cuda, not on {device.type}")
    return bool(device.type == "cuda")


def pin(array: Array, device: torch.device) -> None:
    """Let the GPU read and write this memory directly, for as long as the memory exists. Its pages are its own.

    Memory that is pinned already, for example as part of a larger array, is not pinned again.
    """
    if not array.size or torch.from_numpy(array.reshape(-1).view(np.uint8)).is_pinned():
        return
    address, cuda = array.ctypes.data, torch.cuda.cudart()
    status = int(cuda.cudaHostRegister(address, array.nbytes, 0))
    if status != 0:
        raise ConfigError(f"the GPU cannot use the arena's memory (error {status}): train with --device cpu")
    owner = array.base if isinstance(array.base, np.ndarray) else array
    weakref.finalize(owner, _unpin, address, device).atexit = False


def _unpin(address: int, device: torch.device) -> None:
    """Wait for the GPU's copies before the addresses belong to other memory."""
    torch.cuda.synchronize(device)
    torch.cuda.cudart().cudaHostUnregister(address)


def _make_stream(device: torch.device) -> "torch.cuda.Stream | None":
    return torch.cuda.Stream(device) if is_staged(device) else None


def _carve(
    exchange: Exchange, sizes: Sequence[int], *, shared: bool, stream: "torch.cuda.Stream | None"
) -> list[Array]:
    """Return arrays of the given sizes in bytes, all in one allocation."""
    ends = np.cumsum([0, *(-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes)]).tolist()
    if not ends[-1]:
        return [np.empty(0, np.uint8) for _ in sizes]
    whole = exchange.allocate(ends[-1], np.uint8, shared=shared)
    if stream is not None:
        pin(whole, stream.device)
    return [whole[start : start + size] for start, size in zip(ends, sizes, strict=False)]
