"""Mishaps that only a worker itself can bring about: its connections break, or it hangs."""

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

CUT_SIGNAL = signal.SIGUSR2
HANG_SIGNAL = signal.SIGALRM
AWAY = 1.5
"""So long a worker is stopped or hangs when that is asked for: so many times the stall time."""


def allow_mishaps(hang_s: float) -> None:
    """Let signals break all TCP connections of this process, or make its main thread hang for ``hang_s``."""
    signal.signal(CUT_SIGNAL, lambda *_: _cut())
    signal.signal(HANG_SIGNAL, lambda *_: time.sleep(hang_s))


def _cut() -> None:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                continue
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # a network that breaks ends no listening
                found.shutdown(socket.SHUT_RDWR)
