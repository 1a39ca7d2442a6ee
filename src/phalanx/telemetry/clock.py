"""Estimating by how much another machine's clock differs, from questions and answers. The caller reads the clocks."""

from collections import deque
from typing import NamedTuple

_DRIFT = 50e-6  # by how much of the time that passes two clocks may drift apart
_FEW = 8
_MOST = 64  # answers; older ones are worth less than their drift


class Offset(NamedTuple):
    """What to add to this clock to get the other one, and by how much that may be wrong."""

    offset_ns: int
    uncertainty_ns: int


class ClockEstimate:
    """The difference between this clock and another one.

    The other clock was read somewhere between a question and its answer. Nobody knows when, so the middle may be wrong
    by half of the round trip. The quickest of the recent answers decides.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_MOST)

    def add(self, asked_ns: int, told_ns: int, heard_ns: int) -> None:
        """Note that the other clock told ``told_ns`` in answer to a question."""
        if heard_ns < asked_ns:
            return  # an answer to a question that nobody asked
        half = (heard_ns - asked_ns + 1) // 2
        self._samples.append((told_ns - (asked_ns + heard_ns) // 2, half, heard_ns))

    def forget(self) -> None:
        """Drop all answers: the next ones come from another clock."""
        self._samples.clear()

    @property
    def is_unsure(self) -> bool:
        """Whether there were only a few answers, so that more are worth a question right now."""
        return len(self._samples) < _FEW

    def at(self, now_ns: int) -> Offset | None:
        """Return the best estimate at this time of this clock; None if there was no answer yet."""
        guesses = [Offset(offset, half + int(_DRIFT * abs(now_ns - at)) + 1) for offset, half, at in self._samples]
        return min(guesses, key=lambda guess: guess.uncertainty_ns, default=None)
