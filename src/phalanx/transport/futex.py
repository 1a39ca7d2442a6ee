"""Sleeping until a word of shared memory changes, on systems that can do that."""

import ctypes
import platform
import sys
import time

_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1
_NUMBERS = {"x86_64": 202, "aarch64": 98}  # of the system call, on Linux
_NUMBER = _NUMBERS.get(platform.machine()) if sys.platform == "linux" and sys.byteorder == "little" else None


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_call = ctypes.CDLL(None).syscall
_call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Timespec))


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the word of 32 bits at ``address`` is ``value``, until somebody calls ``wake`` for that address.

    This may return earlier, and returns after ``timeout_s`` in any case: the caller looks at the word again.
    """
    if _NUMBER is None:
        time.sleep(timeout_s)
        return
    _call(_NUMBER, address, _WAIT, value & 0xFFFFFFFF, _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9)))


def wake(address: int) -> None:
    """Wake all threads, in any process, that sleep on the word at ``address``."""
    if _NUMBER is not None:
        _call(_NUMBER, address, _WAKE, _EVERYBODY, None)


IS_THERE = _NUMBER is not None
"""Whether ``wake`` wakes anybody: otherwise a sleep ends with its time, and should be short."""
