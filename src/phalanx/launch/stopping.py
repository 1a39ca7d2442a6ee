"""Decides which signals the workers of a run get, and when, once the run has to end."""

import signal

_NOTICE_S = 2.0  # after a failure, until the other ranks get a signal: they notice by themselves and report more
_TOO_FEW_NOTICE_S = 0.5  # the same for workers that wait to be joined by one that will never come
_LAST_S = 2.0  # from the signal to SIGKILL, if there is nothing to save


class Stopping:
    """When to send which signal to the workers that are left.

    ``grace_s`` is how long workers may take to end after a signal, once all of them have joined the group. Before that
    they have nothing to save, and all end within 3 s. A second signal from the user also ends them soon. Workers that
    are asked to stop get ``stop_signal``; if it is None, they get the signal that the launcher got.
    """

    def __init__(self, grace_s: float, stop_signal: signal.Signals | None = None) -> None:
        self._grace_s = grace_s
        self._stop_signal = stop_signal
        self._steps: list[tuple[float, signal.Signals]] = []
        self._was_asked = False
        self._has_failed = False
        self.has_begun = False
        """Whether workers have got a signal."""

    def fail(self, now: float, *, have_joined: bool) -> None:
        """Note that a worker has failed. Only the first failure counts, and none that follows a signal."""
        if self._has_failed or self.has_begun:
            return
        self._has_failed = True
        begin = now + (_NOTICE_S if have_joined else _TOO_FEW_NOTICE_S)
        self._steps = [(begin, signal.SIGTERM), (begin + self._last_s(have_joined=have_joined), signal.SIGKILL)]

    def ask(self, now: float, number: signal.Signals, *, have_joined: bool) -> None:
        """Note that the launcher got the signal ``number``."""
        last_s = _LAST_S if self._was_asked else self._last_s(have_joined=have_joined)
        self._was_asked = True
        self._steps = [(now, self._stop_signal or number), (now + last_s, signal.SIGKILL)]

    def due(self, now: float) -> list[signal.Signals]:
        """Return the signals to send now."""
        numbers = [number for at, number in self._steps if at <= now]
        self._steps = self._steps[len(numbers) :]
        self.has_begun |= bool(numbers)
        return numbers

    def _last_s(self, *, have_joined: bool) -> float:
        return self._grace_s if have_joined else min(self._grace_s, _LAST_S)
