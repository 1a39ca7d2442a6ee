"""A bucket's memory: where gradients are put, what the exchange sees of them, and where their sum is found."""

import weakref
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array, DType
from phalanx.errors import ConfigError

NARROW = (torch.bfloat16, torch.float16)
"""Types that are added up, and updated, in f32."""
_TYPES = {torch.float32: DType.F32, torch.float64: DType.F64, torch.bfloat16: DType.BF16, torch.float16: DType.F16}


class Slot(Protocol):
    """``rows`` and ``result`` are on the model's device; ``shown`` and ``folded`` are what the exchange works on."""

    rows: torch.Tensor
    result: torch.Tensor
    shown: Array
    folded: Array

    def show(self) -> None:
        """Begin to bring the rows to where the exchange sees them; called by the thread that wrote them."""

    def wait_until_shown(self) -> None:
        """Return when they are there."""

    def take_back(self) -> None:
        """Begin to bring the sum to the result; called by the thread that exchanges."""

    def wait_until_back(self) -> None:
        """Have what this thread does next with the result wait until it is there."""


def make_slot(shown: Array, folded: Array, dtype: torch.dtype, stream: "torch.cuda.Stream | None") -> Slot:
    """The slot of a bucket whose rows and sum lie in ``shown`` and ``folded``; ``stream`` is that of its device."""
    return HostSlot(shown, folded, dtype) if stream is None else DeviceSlot(shown, folded, dtype, stream)


def make_stream(device: torch.device) -> "torch.cuda.Stream | None":
    """What copies to and from a device go through, beside its computing; None on the host."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise ConfigError(f"models are trained on cpu or cuda, not on {device.type}")
    return torch.cuda.Stream(device)


def dtype_of(tensor: torch.Tensor) -> DType:
    """The type of a tensor's elements, as the exchange knows it."""
    found = _TYPES.get(tensor.dtype)
    if found is None:
        known = ", ".join(str(each).removeprefix("torch.") for each in _TYPES)
        raise ConfigError(f"parameters are {known}, not {str(tensor.dtype).removeprefix('torch.')}")
    return found


def as_tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """The array's memory as a tensor; bf16 lies in arrays as uint16."""
    return torch.from_numpy(array.view(np.uint16)).view(dtype) if array.dtype == np.uint16 else torch.from_numpy(array)


class HostSlot:
    """A slot of a model on the CPU: gradients are put where the exchange sees them, so there is nothing to copy."""

    def __init__(self, shown: Array, folded: Array, dtype: torch.dtype) -> None:
        self.shown, self.folded = shown, folded
        self.rows, self.result = as_tensor(shown, dtype), as_tensor(folded, dtype)

    def show(self) -> None:
        """Nothing to do."""

    wait_until_shown = take_back = wait_until_back = show


class DeviceSlot:
    """A slot of a model on a GPU: rows and sum go through the arena's memory, pinned, on a stream of their own."""

    def __init__(self, shown: Array, folded: Array, dtype: torch.dtype, stream: "torch.cuda.Stream") -> None:
        self.shown, self.folded = shown, folded
        self.rows = torch.zeros(shown.shape, dtype=dtype, device=stream.device)
        self.result = torch.zeros(folded.shape, dtype=dtype, device=stream.device)
        pin(shown)
        pin(folded)
        self._shown, self._folded = as_tensor(shown, dtype), as_tensor(folded, dtype)
        self._stream = stream
        self._is_shown, self._is_back = torch.cuda.Event(), torch.cuda.Event()

    def show(self) -> None:
        """Begin to copy the rows out, after what has been asked of the device so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self.rows.device))
        with torch.cuda.stream(self._stream):
            self._shown.copy_(self.rows, non_blocking=True)
            self._is_shown.record()

    def wait_until_shown(self) -> None:
        """Wait for the copy."""
        self._is_shown.synchronize()

    def take_back(self) -> None:
        """Begin to copy the sum in."""
        with torch.cuda.stream(self._stream):
            self.result.copy_(self._folded, non_blocking=True)
            self._is_back.record()

    def wait_until_back(self) -> None:
        """Have the current stream wait for that copy."""
        torch.cuda.current_stream(self.rows.device).wait_event(self._is_back)


def pin(array: Array) -> None:
    """Tell the GPU of memory that it may read and write by itself, for as long as the memory is there.

    Memory that is cut into slots is pinned whole before: what has been pinned is not pinned again.
    """
    if not array.size or torch.from_numpy(array.reshape(-1).view(np.uint8)).is_pinned():
        return
    address, cuda = array.ctypes.data, torch.cuda.cudart()
    status = int(cuda.cudaHostRegister(address, array.nbytes, 0))
    if status != 0:
        raise ConfigError(f"the GPU cannot use the arena's memory (error {status}): train with --device cpu")
    owner = array.base if isinstance(array.base, np.ndarray) else array
    # The GPU keeps the pages it was told of, and would go on using them when the addresses belong to something else.
    weakref.finalize(owner, cuda.cudaHostUnregister, address).atexit = False
