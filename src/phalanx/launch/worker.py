"""Becoming a worker: tie this process's life to the launcher's, then turn into the user's program.

The launcher runs this file as a script, without site packages, so it needs the standard library only. Replacing the
process, rather than running the program inside this one, leaves nothing of us in its tracebacks and its ``sys``.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def become(launcher: int, program: list[str]) -> None:
    """Run ``program`` by Python in this process, which dies when the process ``launcher`` does (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the kernel knew of the tie
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-u", *program])  # noqa: S606 - the user's own program


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
