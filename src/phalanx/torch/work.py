"""What ``torch.distributed`` gets for a call that goes on, and the threads that complete its future."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch import distributed

from phalanx.transport import Pending, SerialExecutor

Result = Sequence[torch.Tensor]


class Completers:
    """Threads that complete futures, one behind the other.

    Whoever completes a future runs its callbacks, and callbacks may wait for collectives (PowerSGD's do). So a future
    that is asked for inside a callback is completed by the next thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[SerialExecutor] = []
        self._here = threading.local()

    def submit(self, complete: Callable[[], None]) -> None:
        """Run ``complete``, which may wait, in a thread that does not wait for the caller."""
        depth = getattr(self._here, "depth", -1) + 1
        if depth == len(self._threads):
            self._threads.append(SerialExecutor(f"{self._name}-{depth}"))
        self._threads[depth].submit("completing a future", self._run, depth, complete)

    def _run(self, depth: int, complete: Callable[[], None]) -> None:
        self._here.depth = depth
        complete()

    def close(self) -> None:
        """Let the threads end when they are done."""
        for thread in self._threads:
            thread.stop()


class Completer(Protocol):
    """Completes futures in threads that do not wait for whoever asks for them."""

    def submit(self, complete: Callable[[], None]) -> None:
        """Run ``complete``, which may wait."""


class ThreadForEach:
    """Completes each future in a thread of its own, for calls that end in any order."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, complete: Callable[[], None]) -> None:
        """Run ``complete``, which may wait."""
        threading.Thread(target=complete, name=self._name, daemon=True).start()


class TensorWork(distributed.Work):  # type: ignore[misc]  # torch is not type-checked
    """A call that goes on: ``wait`` returns when it is done, or raises what went wrong.

    The ``result`` of tensors on ``devices`` is there when the streams that were current in ``wait`` come to it.
    """

    def __init__(
        self, pending: Pending[Any], result: Result, completer: Completer, devices: Sequence[torch.device] = ()
    ) -> None:
        super().__init__()
        self._pending = pending
        self._result = result
        self._completer = completer
        self._devices = devices
        self._asking = threading.Lock()
        self._future: torch.futures.Future[Result] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the result. ``timeout`` limits only this wait; the call itself has a deadline."""
        found = self._pending.wait(timeout.total_seconds() if timeout else None)
        if self._devices and found is not None:
            found.join_current_streams()
        return True

    def synchronize(self) -> None:
        """Wait for the result."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether ``wait`` would return or raise at once."""
        return self._pending.is_done

    def is_success(self) -> bool:
        """Return whether the call is done, and without an error."""
        return self._pending.is_done and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, or None."""
        return self._pending.error

    def result(self) -> Result:
        """Return the tensors that the call has written."""
        return self._result

    def source_rank(self) -> int:
        """Return who has sent what was received."""
        found = self._pending.wait()
        assert isinstance(found, int), "only a receive has a source"
        return found

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Result]:
        """Return a future of the result. Its callbacks may wait for other calls."""
        with self._asking:
            if self._future is None:
                self._future = self._make_future()
        return self._future

    def _make_future(self) -> torch.futures.Future[Result]:
        first: torch.futures.Future[None] = torch.futures.Future(devices=list(self._devices))
        # Only an error that a callback raises is an error to C++ code, too, such as DDP's.
        future = first.then(self._unwrap)
        if self._pending.is_done:
            self._complete(first)
        else:
            self._completer.submit(partial(self._complete, first))
        return future

    def _complete(self, first: "torch.futures.Future[None]") -> None:
        self._pending.wait_until_done()
        first.set_result(None)

    def _unwrap(self, _: object) -> Result:
        self.wait()
        return self._result


class CompletedCall(Pending[Any]):
    """A call that was carried out already."""

    def __init__(self, result: object = None) -> None:  # not super(): the event that nobody will wait for costs most
        self._result = result

    @property
    def is_done(self) -> bool:
        """Always."""
        return True

    @property
    def error(self) -> None:
        """None: the call has raised its error itself."""
        return

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the result."""
        del timeout_s
        return self._result

    def wait_until_done(self) -> None:
        """Return at once."""
