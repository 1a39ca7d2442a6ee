"""The progress of the present step, which outlives the epochs in which the step is tried."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from phalanx.parallel.engine.lane_run import LaneOutcome
from phalanx.parallel.reduction import KeptPiece, Reducer

Result = TypeVar("Result")


class StepProgress:
    """What this rank has of the present step: computed lanes, kept sums, and results found since the last step.

    ``outcomes`` has the lanes that this rank has computed, and ``pieces`` the sums that it has kept from an epoch that
    is over. ``results`` has what the members have found together behind the last step: numbers and digests.
    """

    def __init__(self) -> None:
        self.outcomes: dict[int, LaneOutcome] = {}
        self.pieces: dict[range, KeptPiece] = {}
        self.results: list[Any] = []  # Any: what each of the calls returns
        self._returned = 0  # how many of the results this rank's caller has had

    @property
    def kept_lanes(self) -> list[int]:
        """The lanes of the kept sums."""
        return [lane for lanes in self.pieces for lane in lanes]

    def keep(self, reducer: Reducer) -> None:
        """Keep the sums that this rank has in the reducer of an epoch that is over."""
        if not all(lane in self.outcomes for lane in reducer.lanes):
            return
        for lanes, gradients in reducer.keep():
            outcomes = [self.outcomes[lane] for lane in lanes]
            counts, used = [each.count for each in outcomes], np.sum([each.used for each in outcomes], axis=0)
            self.pieces[lanes] = KeptPiece(lanes, counts, used, gradients)

    def find(self, act: Callable[[], Result]) -> Result:
        """Return the next result: the one that the members have found without this rank, or that of ``act``."""
        if self._returned == len(self.results):
            self.results.append(act())
        self._returned += 1
        found: Result = self.results[self._returned - 1]
        return found

    def learn(self, results: Sequence[Any]) -> None:
        """Take over the results of a member that has found more than this rank."""
        if len(results) > len(self.results):
            self.results = list(results)

    def clear(self) -> None:
        """Forget what belonged to a step that counts now."""
        self.outcomes.clear()
        self.pieces.clear()
        self.results, self._returned = [], 0
