"""Running operations one after another, in the order in which they were submitted."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from phalanx.errors import LinkClosed
from phalanx.transport.pending import Pending

Result = TypeVar("Result")

_here = threading.local()


def is_in_background() -> bool:
    """Return whether this thread carries out operations that were submitted, while its program may compute."""
    return getattr(_here, "is_executor", False)


class SerialExecutor:
    """Runs operations one at a time: a blocking one in the caller's thread if nothing waits, the others in its own.

    Handing an operation to another thread costs more than a small collective.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = threading.Lock()  # held by whoever works
        self._arrived = threading.Condition()
        self._waiting: deque[tuple[Pending[Any], Callable[[], Any]]] = deque()  # Any: each has a result of its own type
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def run(self, what: object, function: Callable[..., Result], *arguments: object) -> Result:
        """Call ``function`` when all earlier operations are done, and return its result."""
        if self._waiting or not self._turn.acquire(blocking=False):
            return self.submit(what, function, *arguments).wait()
        try:
            return function(*arguments)
        finally:
            self._turn.release()

    def submit(self, what: object, function: Callable[..., Result], *arguments: object) -> Pending[Result]:
        """Have ``function`` called when all earlier operations are done; ``what`` says what it does, for errors."""
        pending: Pending[Result] = Pending(what)
        with self._arrived:
            if self._is_closing:
                raise LinkClosed(f"this was closed on this side before {what}")
            self._waiting.append((pending, partial(function, *arguments)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._arrived.notify()
        return pending

    def stop(self) -> None:
        """Take nothing more, and let the thread end when it is done. Stopping twice is harmless."""
        with self._arrived:
            self._is_closing = True
            self._arrived.notify()

    def close(self) -> None:
        """Finish what was submitted, then stop. Closing twice is harmless."""
        self.stop()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        _here.is_executor = True
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                pending, operation = self._waiting[0]
            with self._turn:
                pending.complete(operation)
                self._waiting.popleft()  # only now: a blocking call must not slip in between
            del pending, operation  # or their arrays would live until the next call
