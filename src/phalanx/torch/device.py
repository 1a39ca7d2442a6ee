"""Tensors on a GPU: copied through pinned memory, on a stream of its own, so that no other stream waits."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_streams: dict[torch.device, torch.cuda.Stream] = {}


class DeviceStaging:
    """Copies of one call's tensors in pinned memory.

    Copying the inputs begins at once, behind what the current stream was told before. The outputs are copied back when
    the call is done.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._outputs = outputs
        self.device = (*inputs, *outputs)[0].device
        self._stream = _streams.setdefault(self.device, torch.cuda.Stream(self.device))
        self._host = {id(each): _pinned(each) for each in (*inputs, *outputs)}
        self._inputs = [self._host[id(each)] for each in inputs]
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for given in inputs:
                self._host[id(given)].copy_(given.detach(), non_blocking=True)
                given.record_stream(self._stream)
            self._copied = self._stream.record_event()
        self._done: torch.cuda.Event | None = None

    def run(self, act: Callable[[Sequence[Tensor], Sequence[Tensor]], None]) -> "DeviceStaging":
        """Call ``act`` with the copies, once they are there, and begin to copy the outputs back."""
        self._copied.synchronize()
        act(self._inputs, [self._host[id(each)] for each in self._outputs])
        with torch.cuda.stream(self._stream):
            for output in self._outputs:
                output.detach().copy_(self._host[id(output)], non_blocking=True)
                output.record_stream(self._stream)
            self._done = self._stream.record_event()
        return self

    def join_current_streams(self) -> None:
        """Let the current stream wait until the outputs are there. The host does not wait."""
        assert self._done is not None, "the call is done"
        torch.cuda.current_stream(self.device).wait_event(self._done)


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
