"""Having the kernel refuse a system call, as containers do."""

import ctypes
import platform
import struct

import pytest

MEMFD_CREATE, MEMBARRIER = 319, 324
_SECCOMP, _NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse(number):
    """Have this process, from now on and for good, be refused the system call with this number."""
    instructions = [(_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    program = _Program(len(instructions), b"".join(struct.pack("<HBBI", *each) for each in instructions))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0
