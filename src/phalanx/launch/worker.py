"""Makes this process end with the launcher, then replaces it with the user's program.

The launcher runs this file as a script without site packages, so it may use the standard library only. Replacing the
process, instead of running the program inside it, leaves nothing of Phalanx in its tracebacks and its ``sys``.
"""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # or Ctrl-C at this moment prints a traceback of this file

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(launcher: int) -> None:
    """Let the kernel kill this process when ``launcher``, its parent, dies; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # the launcher died before prctl took effect
        sys.exit(1)


def become(launcher: int, program: list[str]) -> None:
    """Replace this process by Python running ``program``. On Linux, it dies with ``launcher``."""
    die_with(launcher)
    os.execv(sys.executable, [sys.executable, "-u", *program])  # noqa: S606 - the user's own program


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
