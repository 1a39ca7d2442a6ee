"""Decides what becomes of an elastic run when one of its workers ends."""

from phalanx.launch.verdict import End

LEFT = 75
"""The exit code of a worker that was asked to leave, and did. It is not replaced."""

LOST = 76
"""The exit code of a worker of a run whose state was lost with its workers. The run goes on from a checkpoint."""

_ROUNDS = 5  # how often all workers may die without a step between
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class Supervision:
    """When to start workers in the place of those that died, and when to give up.

    ``wanted`` is how many workers there should be on this machine. A worker that was killed is replaced at once. If as
    many die before another step is taken, the next ones are started later and later, and after some rounds none is.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._deaths = 0  # since the last step
        self._step = 0
        self._due: list[float] = []
        self.is_over = False
        """Whether a worker has come to the end of the run, or failed: then none is replaced."""
        self.reason: str | None = None
        """Why no more workers are started, if they keep dying."""

    def note_end(self, end: End, step: int, now: float) -> None:
        """Note that a worker ended when the run had taken ``step`` steps."""
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
        pause_s = min(_FIRST_PAUSE_S * 2 ** (rounds - 1), _LONGEST_PAUSE_S) if rounds else 0.0
        self._due.append(now + pause_s)

    @property
    def is_waiting(self) -> bool:
        """Whether a worker will be started later."""
        return bool(self._due) and not self.is_over and self.reason is None

    def take_due(self, now: float) -> int:
        """Return how many workers to start now."""
        if not self.is_waiting:
            return 0
        count = sum(due <= now for due in self._due)
        self._due = [due for due in self._due if due > now]
        return count
