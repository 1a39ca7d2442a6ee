"""The result of an operation that is still going on."""

import threading
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

from phalanx.errors import DeadlineExceeded

Result = TypeVar("Result")
Error = TypeVar("Error", bound=BaseException)


def drop_variables(error: Error) -> Error:
    """Return an error when the frames it has come through, and the errors behind it, have dropped their variables.

    Otherwise these live as long as the error: buffers of a group that is over, and in circles the error itself. The
    lines of its traceback stay.
    """
    behind: BaseException | None = error
    seen = set()  # errors can be behind each other in a circle
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        traceback.clear_frames(behind.__traceback__)
        behind = behind.__cause__ or behind.__context__
    return error


class Pending(Generic[Result]):
    """The future result of an operation, or the error that came instead."""

    def __init__(self, what: object) -> None:
        self.what = what
        self._finished = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._finished.is_set()

    @property
    def error(self) -> BaseException | None:
        """What went wrong; None if nothing did, or nothing has yet."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> Result:
        """Return the result, or raise what went wrong.

        Without ``timeout_s`` this ends at the deadline that the operation itself was given.
        """
        if not self._finished.wait(timeout_s):
            raise DeadlineExceeded(f"{self.what} was not finished after {timeout_s} s; it goes on: wait again for it")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set before the event, whatever its type

    def wait_until_done(self) -> None:
        """Return when ``wait`` would return or raise at once. The operation itself has a deadline."""
        self._finished.wait()

    def complete(self, make_result: Callable[[], Result]) -> None:
        """Run ``make_result`` and keep what it returns or raises."""
        try:
            self._result = make_result()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            trace = error.__traceback__
            self._error = drop_variables(error.with_traceback(trace and trace.tb_next))
        self._finished.set()
        del self, make_result  # the frames of the error keep this one alive, and it would keep the error alive

    def fail(self, error: BaseException) -> None:
        """Keep an error that came instead of the result."""
        self._error = error
        self._finished.set()
