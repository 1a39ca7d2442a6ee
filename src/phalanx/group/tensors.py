"""What people pass to a call, seen as numpy arrays: without a copy, and without importing another library."""

import sys
from typing import Any

import numpy as np

from phalanx.buffers import Array, DType
from phalanx.errors import ConfigError

_NUMBERS = (bool, int, float, np.bool_, np.number)


def is_number(value: object) -> bool:
    """Return whether this is a number of Python or numpy, and no array."""
    return type(value) is not np.ndarray and isinstance(value, _NUMBERS)


def as_array(value: object, name: str) -> Array:
    """Return an array that has the memory of ``value``: numpy's, a tensor of torch on the CPU, or what has DLPack.

    Anything that would have to be copied is a ConfigError, because a result could not be written into it.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_tensor(value):
        return _see_tensor(value, name)
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value, copy=False)
    except (ValueError, TypeError, BufferError, RuntimeError):
        words = f"{name} must be an array that shares its memory, not {type(value).__name__}"
        raise ConfigError(f"{words}: pass np.asarray(...), or a tensor on the CPU") from None


def like(value: object, array: Array) -> Any:  # Any: of the kind of value, with the memory of array
    """Return ``array`` as a tensor if ``value`` is one."""
    return to_tensor(array) if is_tensor(value) else array


def to_tensor(array: Array) -> Any:  # Any: this layer knows nothing of torch
    """Return a tensor with the memory of ``array``, or the array itself where torch is not imported."""
    torch: Any = sys.modules.get("torch")  # Any: as above
    if torch is None:
        return array
    if DType.of(array) is DType.BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor of torch. Who has made one has imported torch."""
    torch: Any = sys.modules.get("torch")  # Any: as above
    return torch is not None and isinstance(value, torch.Tensor)


def put_in_array(number: object, name: str) -> Array:
    """Return an array with a number as its one element, and without an axis."""
    array = np.array(number)
    if array.dtype == object:
        raise ConfigError(f"{name} is an integer of more than 64 bits: pass a float")
    return array


def _see_tensor(tensor: Any, name: str) -> Array:  # Any: as above
    torch: Any = sys.modules["torch"]  # Any: as above
    if tensor.requires_grad:
        raise ConfigError(f"{name} requires grad, and autograd does not see collectives: pass {name}.detach()")
    if tensor.device.type != "cpu":
        raise ConfigError(f"{name} is on {tensor.device}, and collectives work on the CPU: pass {name}.cpu()")
    if tensor.layout is not torch.strided:
        raise ConfigError(f"{name} is sparse, and only dense tensors are exchanged: pass {name}.to_dense()")
    if not tensor.is_contiguous():
        raise ConfigError(f"{name} is not contiguous: pass {name}.contiguous()")
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(DType.BF16.numpy)
    try:
        found: Array = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be exchanged: {error}") from None
    return found
