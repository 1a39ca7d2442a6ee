"""Noticing at once that a process of this machine has died.

The kernel frees the memory of a killed process before it closes its sockets. That takes 50 ms for 400 MB, and several
times as long on a busy machine. Before that, the kernel walks the *robust list* of each thread: it marks every word on
the list as that of a dead owner, and wakes a thread that sleeps on the word.
"""

import ctypes
import platform
import struct
import sys
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from phalanx.transport import futex

Bytes = npt.NDArray[np.uint8]

LIFELINE_BYTES = 16
"""What a lifeline needs in shared memory: the word, and the entry of the robust list that leads to it."""

_ENTRY = 8  # behind the word, which is shorter
_OWNER_DIED, _WAITERS = 0x40000000, 0x80000000  # the kernel wakes a sleeper only if the word has the second one
_NUMBERS = {"x86_64": 273, "aarch64": 99}  # of the system call set_robust_list, on Linux
_NUMBER = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
_HEAD = struct.Struct("@QqQ")  # the first entry, the way from an entry to its word, and an entry that is being added
_LONGEST_SLEEP_S = 1.0
_STEP_S = 0.01

_call = ctypes.CDLL(None).syscall
_call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t)


def _do_nothing() -> None:
    """The other process need not be watched any longer."""


class Lifeline:
    """A thread that shows by its life that its process lives, and that watches for the death of one other process.

    ``own`` and ``other`` are ``LIFELINE_BYTES`` of shared memory each; only this process writes ``own``. ``on_death``
    is called once, in the thread, if the other process dies before it has closed its lifeline. Only one other process
    may watch this one, because the kernel wakes a single thread. On systems without robust lists nothing happens.
    """

    def __init__(self, own: Bytes, other: Bytes, on_death: Callable[[], None]) -> None:
        self._own, self._other = own, other
        self._on_death = on_death
        self._is_closed = False
        self._is_held = threading.Event()
        self._thread = threading.Thread(target=self._live, name="phalanx-lifeline", daemon=True)
        if _NUMBER is not None:
            self._thread.start()
            self._is_held.wait(_LONGEST_SLEEP_S)  # from here on this process cannot die unnoticed

    def close(self) -> None:
        """Stop watching, and tell the watcher that this process need not be watched. Closing twice is harmless."""
        self._is_closed = True
        while self._thread.is_alive():
            futex.wake(self._other.ctypes.data)
            self._thread.join(_STEP_S)
        self._on_death = _do_nothing  # it may keep alive whoever keeps this one alive

    def _live(self) -> None:
        head = ctypes.create_string_buffer(_HEAD.size)  # lives as long as this thread
        own, entry = self._own[:_ENTRY].view(np.uint32), self._own[_ENTRY:].view(np.uint64)
        entry[0] = ctypes.addressof(head)  # a list of one entry, which leads back to the head
        _HEAD.pack_into(head, 0, entry.ctypes.data, own.ctypes.data - entry.ctypes.data, 0)
        _call(_NUMBER or 0, ctypes.addressof(head), _HEAD.size)
        own[0] = threading.get_native_id() | _WAITERS
        futex.wake(own.ctypes.data)
        self._is_held.set()
        self._watch()
        own[0] = 0
        _HEAD.pack_into(head, 0, ctypes.addressof(head), 0, 0)

    def _watch(self) -> None:
        address, word = self._other.ctypes.data, self._other[:_ENTRY].view(np.uint32)
        has_died = False
        while not self._is_closed:
            value = int(word[0])
            if value & _OWNER_DIED and not has_died:
                has_died = True
                self._on_death()
            futex.sleep_while(address, value, _LONGEST_SLEEP_S)
