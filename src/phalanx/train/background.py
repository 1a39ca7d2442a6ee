"""Saving checkpoints beside training: a copy of the state is taken at once, and a thread writes the copy."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch

from phalanx.checkpoint import Pace

State = Mapping[str, Mapping[str, torch.Tensor]]
"""Tensors by set and by name, as ``Engine.state`` returns them."""

_NICE = 19
_REST = 40  # times the work of the thread


class BackgroundSaves:
    """Writes copies of a state, one after the other, in a thread. All calls come from one other thread.

    The memory of the copy is kept for the next one. The thread has a low priority, and rests most of the time until
    somebody waits for it: on a machine that is busy with training, every millisecond of its work delays a step.
    """

    def __init__(self) -> None:
        self._copy = _StateCopy()
        self._thread = ThreadPoolExecutor(1, "phalanx-checkpoint", initializer=_lower_priority)
        self._last: Future[None] | None = None
        self._is_awaited = threading.Event()
        self._rested_at_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a copy is being written."""
        return self._last is not None and not self._last.done()

    def begin(self, state: State, write: Callable[[State, Pace], None]) -> None:
        """Wait for the last copy to be written, copy ``state``, and let ``write`` write the copy at the pace it gets.

        If the last copy could not be written, raise its error.
        """
        self.wait()
        self._is_awaited.clear()
        self._last = self._thread.submit(self._run, write, self._copy.take(state))

    def check(self) -> None:
        """Raise the error of the last copy if it could not be written. Do not wait for it."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until the last copy is written, which takes as long as the disk does, or raise its error."""
        self._is_awaited.set()
        last, self._last = self._last, None
        if last:
            last.result()

    def close(self) -> None:
        """Wait until the last copy is written, and end the thread. Closing twice is harmless."""
        self._is_awaited.set()
        self._thread.shutdown()

    def _run(self, write: Callable[[State, Pace], None], copy: State) -> None:
        self._rested_at_s = time.thread_time()
        write(copy, self._rest)

    def _rest(self) -> None:
        """Rest in proportion to the work since the last rest, unless somebody waits."""
        self._is_awaited.wait(_REST * (time.thread_time() - self._rested_at_s))
        self._rested_at_s = time.thread_time()


class _StateCopy:
    """The copy of a state on the CPU. Copying again allocates nothing, unless a tensor has another shape or type."""

    def __init__(self) -> None:
        self._state: dict[str, dict[str, torch.Tensor]] = {}

    def take(self, state: State) -> State:
        """Return a copy of a state. It is overwritten the next time. Memory for tensors of a GPU is pinned."""
        self._state = {
            name: {key: self._copy(name, key, tensor.detach()) for key, tensor in tensors.items()}
            for name, tensors in state.items()
        }
        for device in {tensor.device for tensors in state.values() for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return self._state

    def _copy(self, name: str, key: str, tensor: torch.Tensor) -> torch.Tensor:
        room = self._state.get(name, {}).get(key)
        if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
            room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return room.copy_(tensor, non_blocking=True)


def _lower_priority() -> None:
    """Let this thread run after all others, where a thread has a priority of its own."""
    if sys.platform == "linux":
        with suppress(OSError):  # then it competes with training
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
