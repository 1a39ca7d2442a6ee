"""Saving checkpoints beside training: a copy of the state is taken at once, and a thread writes the copy."""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch

State = Mapping[str, Mapping[str, torch.Tensor]]
"""Tensors by set and by name, as ``Engine.state`` returns them."""

_NICE = 19  # the thread takes the time that training leaves


class BackgroundSaves:
    """Writes copies of a state, one after the other, in a thread of low priority. All calls come from one other thread.

    The memory of the copy is kept for the next one.
    """

    def __init__(self) -> None:
        self._copy = _StateCopy()
        self._thread = ThreadPoolExecutor(1, "phalanx-checkpoint", initializer=_lower_priority)
        self._last: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a copy is being written."""
        return self._last is not None and not self._last.done()

    def begin(self, state: State, write: Callable[[State], None]) -> None:
        """Wait for the last copy to be written, copy ``state``, and let ``write`` write the copy meanwhile.

        If the last copy could not be written, raise its error.
        """
        self.wait()
        self._last = self._thread.submit(write, self._copy.take(state))

    def check(self) -> None:
        """Raise the error of the last copy if it could not be written. Do not wait for it."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until the last copy is written, which takes as long as the disk does, or raise its error."""
        last, self._last = self._last, None
        if last:
            last.result()

    def close(self) -> None:
        """Wait until the last copy is written, and end the thread. Closing twice is harmless."""
        self._thread.shutdown()


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
