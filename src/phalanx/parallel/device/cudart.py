"""What torch does not offer of CUDA's runtime: memory that other processes of the machine can open.

Memory comes from ``cudaMalloc`` itself. Torch's allocator cuts larger pieces, and with expandable segments these
cannot be shared at all. The runtime is the one that torch has loaded.
"""

import ctypes
from functools import cache
from pathlib import Path

from phalanx.errors import ConfigError

HANDLE_BYTES = 64
_ALIGNED_BYTES = 2 << 20  # a smaller allocation may lie in one block with others, which would be shared too
_OPEN_LAZILY = 1  # cudaIpcMemLazyEnablePeerAccess
_MPS_ENABLED = 133  # cudaDevAttrMpsEnabled


class _Handle(ctypes.Structure):
    _fields_ = (("octets", ctypes.c_ubyte * HANDLE_BYTES),)


def allocate(nbytes: int) -> int:
    """Return the address of new memory on the present device. Its content is anything."""
    address = ctypes.c_void_p()
    rounded = max(1, -(-nbytes // _ALIGNED_BYTES)) * _ALIGNED_BYTES
    _call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(rounded))
    return address.value or 0


def free(address: int) -> None:
    """Give memory back that ``allocate`` has returned."""
    _call("cudaFree", ctypes.c_void_p(address))


def export(address: int) -> bytes:
    """Return the handle by which other processes open memory that ``allocate`` has returned."""
    handle = _Handle()
    _call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    return bytes(handle.octets)


def open_exported(handle: bytes) -> int:
    """Return the address at which this process sees the memory of another one."""
    address = ctypes.c_void_p()
    _call("cudaIpcOpenMemHandle", ctypes.byref(address), _Handle.from_buffer_copy(handle), ctypes.c_uint(_OPEN_LAZILY))
    return address.value or 0


def close_exported(address: int) -> None:
    """Stop seeing the memory of another process."""
    _call("cudaIpcCloseMemHandle", ctypes.c_void_p(address))


def has_mps(device: int) -> bool:
    """Return whether a server of MPS runs what processes send to this GPU."""
    found = ctypes.c_int()
    try:
        _call("cudaDeviceGetAttribute", ctypes.byref(found), ctypes.c_int(_MPS_ENABLED), ctypes.c_int(device))
    except ConfigError:  # a runtime from before this question could be asked
        return False
    return bool(found.value)


def _call(name: str, *arguments: object) -> None:
    runtime = _runtime()
    status = getattr(runtime, name)(*arguments)
    if status:
        runtime.cudaGetLastError()  # else torch finds it, and takes it for an error of its own
        words = ctypes.string_at(runtime.cudaGetErrorString(status)).decode()
        raise ConfigError(f"{name} says: {words}")


@cache
def _runtime() -> ctypes.CDLL:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libcudart" in path:
            runtime = ctypes.CDLL(path)
            runtime.cudaGetErrorString.restype = ctypes.c_void_p
            return runtime
    raise ConfigError("torch has loaded no libcudart that could share memory of a GPU")
