"""Ordering the memory of several processes, on processors that do not keep stores in order by themselves.

Python has no fence, but Linux has a system call that acts as one on all CPUs that run a registered process.
"""

import ctypes
import os
import platform
import sys

_QUERY, _GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 0, 1 << 1, 1 << 2
_NUMBERS = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}  # of the system call
_NUMBER = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None

IS_NEEDED = platform.machine().lower() not in ("x86_64", "amd64", "i686")
"""Whether stores of this processor may become visible in another order: those of x86 never do."""

_call = ctypes.CDLL(None, use_errno=True).syscall
_call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int)
_call.restype = ctypes.c_long


def register() -> None:
    """Have ``order_memory`` of other processes act on this one too. Raises ``OSError`` where the kernel cannot."""
    if _NUMBER is None:
        raise OSError(f"membarrier is not known for {platform.machine()}")
    wanted = _GLOBAL_EXPEDITED | _REGISTER_GLOBAL_EXPEDITED
    if _do(_QUERY) & wanted != wanted:
        raise OSError("the kernel has no global expedited membarrier: it needs Linux 4.16")
    _do(_REGISTER_GLOBAL_EXPEDITED)


def order_memory() -> None:
    """Have all registered processes see what was stored before this call before anything that is stored after it."""
    _do(_GLOBAL_EXPEDITED)


def _do(command: int) -> int:
    result: int = _call(_NUMBER or 0, command, 0, 0)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"membarrier: {os.strerror(number)}")
    return result
