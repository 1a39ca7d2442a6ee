"""The memory of buckets: where gradients are stored, where the exchange reads them, and where their mean is."""

import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from phalanx.buffers import Array, DType
from phalanx.errors import ConfigError
from phalanx.parallel.reduction.device_fold import divide
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.layout import Bucket, align
from phalanx.parallel.reduction.torch_exchange import TorchExchange
from phalanx.transport import allocate_pages

_TYPES = {torch.float32: DType.F32, torch.float64: DType.F64, torch.bfloat16: DType.BF16, torch.float16: DType.F16}
TENSOR_TYPES = {dtype: tensor_type for tensor_type, dtype in _TYPES.items()}
"""The type of torch's tensors for each type that the exchange knows."""
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
    buckets: Sequence[Bucket],
    rows: int,
    exchange: Exchange,
    device: torch.device,
    *,
    is_borrowing: bool,
    used: int,
) -> list[BucketMemory]:
    """Return the memory of all buckets, for ``rows`` sums each, of which ``used`` leave; all ranks call this together.

    All pieces lie in one allocation, and so do all means that the ranks of a host share, so few descriptors are open.
    If gradients are borrowed instead of copied, all buckets use the same memory, which then stays in cache. Only the
    owned blocks of a sharded mean are ever written, so the rest of it takes up no memory.
    """
    if is_staged(device) and isinstance(exchange, TorchExchange) and exchange.is_on_gpu:
        return [ResidentMemory(rows, bucket, exchange, device) for bucket in buckets]
    streams = _make_streams(device)
    sizes = [rows * bucket.length * bucket.dtype.itemsize for bucket in buckets]
    pieces = _carve(exchange, [max(sizes, default=0)] if is_borrowing else sizes, shared=False, device=device)
    is_shared = exchange.size > 1  # also by a rank that is alone on its host: all ranks make the same calls
    shared = [bucket.length * bucket.dtype.itemsize for bucket in buckets if is_shared and not bucket.is_sharded]
    means = iter(_carve(exchange, shared, shared=True, device=device))
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
        tensor_type = TENSOR_TYPES[bucket.dtype]
        if streams is None:
            found.append(HostMemory(host_pieces, host_mean, tensor_type))
        else:
            found.append(DeviceMemory(host_pieces, host_mean, tensor_type, streams, used))
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
    """The memory of a bucket of a model on a GPU: pieces and mean are staged through pinned memory of the host.

    Copies out and copies in have a stream each, so that they pass each other on the bus. Of the ``rows``, only those
    that are ``pieces`` in the end are copied.
    """

    def __init__(
        self, host_pieces: Array, host_mean: Array, dtype: torch.dtype, streams: "CopyStreams", used: int
    ) -> None:
        self.host_pieces, self.host_mean = host_pieces, host_mean
        self.stream, device = streams.inwards, streams.inwards.device
        self.pieces = torch.zeros(host_pieces.shape, dtype=dtype, device=device)
        self.padded_mean = torch.zeros(align(len(host_mean)), dtype=dtype, device=device)
        self.mean = self.padded_mean[: len(host_mean)]
        pin(host_pieces, device)
        pin(host_mean, device)
        self._staged_pieces, self._staged_mean = as_tensor(host_pieces, dtype)[:used], as_tensor(host_mean, dtype)
        self._outwards = streams.outwards
        self._is_out, self._is_in = torch.cuda.Event(blocking=True), torch.cuda.Event(blocking=True)

    def start_copy_out(self) -> None:
        """Start the copy on its own stream, after all work that was queued on the device so far."""
        self._outwards.wait_stream(torch.cuda.current_stream(self.pieces.device))
        with torch.cuda.stream(self._outwards):
            self._staged_pieces.copy_(self.pieces[: len(self._staged_pieces)], non_blocking=True)
            self._is_out.record()

    def wait_for_copy_out(self) -> None:
        """Wait for that copy, and until the mean of the last step has left the host, where the next one will be."""
        self._is_out.synchronize()
        self._is_in.synchronize()

    def make_mean(self, divisor: float | None) -> None:
        """Begin to copy the sum to the device, and to divide it there, on the present stream."""
        self.mean.copy_(self._staged_mean, non_blocking=True)
        divide(self.mean, divisor)

    def start_copy_in(self) -> None:
        """Note that all work on the mean is queued."""
        self._is_in.record(torch.cuda.current_stream(self.mean.device))

    def wait_for_copy_in(self) -> None:
        """Make the current stream wait for that work."""
        torch.cuda.current_stream(self.mean.device).wait_event(self._is_in)

    def wait_for_mean(self) -> None:
        """Wait until that work is done."""
        self._is_in.synchronize()


class CopyStreams(NamedTuple):
    """The streams on which a GPU copies pieces out to the host, and means in from there."""

    outwards: "torch.cuda.Stream"
    inwards: "torch.cuda.Stream"


class ResidentMemory:
    """The memory of a bucket of a model on a GPU that exchanges by itself: nothing is staged.

    Instead of copies, the streams of the model and of the exchange wait for each other.
    """

    host_pieces = host_mean = np.empty(0, np.float32)

    def __init__(self, rows: int, bucket: Bucket, exchange: TorchExchange, device: torch.device) -> None:
        assert bucket.dtype is DType.F32, "an engine exchanges f32"
        self.exchange = exchange
        self.pieces = torch.zeros((rows, bucket.length), device=device)
        self.mean = torch.zeros(bucket.length, device=device)
        self._is_out, self._is_in = torch.cuda.Event(), torch.cuda.Event()

    def start_copy_out(self) -> None:
        """Note that all work on the pieces is queued."""
        self._is_out.record(torch.cuda.current_stream(self.pieces.device))

    def wait_for_copy_out(self) -> None:
        """Make the exchange wait for that work."""
        torch.cuda.current_stream(self.pieces.device).wait_event(self._is_out)

    def start_copy_in(self) -> None:
        """Note that all work on the mean is queued."""
        self._is_in.record(torch.cuda.current_stream(self.mean.device))

    def wait_for_copy_in(self) -> None:
        """Make the current stream wait for that work."""
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
    octets = array.reshape(-1).view(np.uint8)
    if not array.size or all(torch.from_numpy(octets[end:]).is_pinned() for end in (0, -1)):
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


def _make_streams(device: torch.device) -> CopyStreams | None:
    return CopyStreams(torch.cuda.Stream(device), torch.cuda.Stream(device)) if is_staged(device) else None


def _carve(exchange: Exchange, sizes: Sequence[int], *, shared: bool, device: torch.device) -> list[Array]:
    """Return arrays of the given sizes in bytes, all in one allocation."""
    ends = np.cumsum([0, *(-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes)]).tolist()
    if not ends[-1]:
        return [np.empty(0, np.uint8) for _ in sizes]
    whole = exchange.allocate(ends[-1], np.uint8, shared=shared)
    if is_staged(device):
        pin(whole, device)
    return [whole[start : start + size] for start, size in zip(ends, sizes, strict=False)]
