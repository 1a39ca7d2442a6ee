"""Decides what becomes of an elastic run when one of its workers ends."""

import signal

from phalanx.launch.verdict import End

STOP_SIGNAL = signal.SIGUSR1
"""Asks all workers of a run to save a checkpoint and stop. SIGTERM asks one worker to leave."""

LEFT = 75
"""The exit code of a worker that was asked to leave, and did. It is not replaced."""

LOST = 76
"""The exit code of a worker of a run whose state was lost with its workers. The run goes on from a checkpoint."""

_ROUNDS = 5  # how often all workers may die without a step between
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_HEADWAY_S = 2.0  # for the others to finish the step before a new worker takes their CPUs: it has much to load


class Supervision:
    """When to start workers in the place of those that died, and when to give up.

    ``wanted`` is how many workers there should be on this machine. A worker that was killed is replaced when the others
    have finished the step, or after a short while. If as many die before another step is taken, the next ones are
    started later and later, and after some rounds none is.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._deaths = 0  # since the last step
        self._step = 0
        self._due: list[tuple[float, int]] = []  # when, or after which step
        self.is_over = False
        """Whether a worker has come to the end of the run, or failed: then none is replaced."""
        self.reason: str | None = None
        """Why no more workers are started, if they keep dying."""

    def note_end(self, end: End, step: int, others: int, now: float) -> None:
        """Note that a worker ended when the run had taken ``step`` steps, and that so many ``others`` are left."""
        if step != self._step:
            self._step, self._deaths = step, 0
        if end.code >= 0:
            self.is_over |= end.code != LEFT
            return
        if end.was_stopped:
            return
        self._deaths += 1
        rounds = (self._deaths - 1) // self._wanted
        if rounds >= _ROUNDS:
            self.reason = (
                f"{self._deaths} workers died one after another at step {step}, and no step was taken between: "
                f"the last one, {end.name}, {end.manner}"
            )
            return
        headway_s = _HEADWAY_S if others else 0.0
        pause_s = min(_FIRST_PAUSE_S * 2 ** (rounds - 1), _LONGEST_PAUSE_S) if rounds else headway_s
        self._due.append((now + pause_s, step))

    @property
    def waiting(self) -> int:
        """How many workers will be started later."""
        return len(self._due) if not self.is_over and self.reason is None else 0

    def take_due(self, step: int, now: float) -> int:
        """Return how many workers to start now that the run has taken ``step`` steps."""
        later = [(due, its_step) for due, its_step in self._due if due > now and its_step >= step]
        count = len(self._due) - len(later) if self.waiting else 0
        self._due = later
        return count
