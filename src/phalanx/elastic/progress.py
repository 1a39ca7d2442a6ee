"""The progress of the present step, which outlives the epochs in which the step is tried."""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

Outcome = TypeVar("Outcome")
Piece = TypeVar("Piece")


class StepProgress(Generic[Outcome, Piece]):
    """What this rank has of the present step: computed lanes, kept sums, and results found since the last step.

    ``outcomes`` has the lanes that this rank has computed, and ``pieces`` the sums that it has kept from an epoch that
    is over. ``results`` has what the members have found together behind the last step: numbers and digests.
    """

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.pieces: dict[range, Piece] = {}
        self.results: list[Any] = []  # Any: what each of the calls returns
        self.is_complete = False
        """Whether all lanes of this rank have been added up in the present epoch, so that the sums can be kept."""
        self._returned = 0  # how many of the results this rank's caller has had

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The first lane of each kept sum, and the lane behind its last."""
        return tuple((lanes.start, lanes.stop) for lanes in self.pieces)

    def begin_epoch(self) -> None:
        """Begin an epoch, in which nothing has been added up yet."""
        self.is_complete = False

    def keep(self, pieces: Iterable[tuple[range, Piece]]) -> None:
        """Keep the sums of an epoch that is over, for use in the next one, if they are complete."""
        if self.is_complete:
            self.pieces.update(pieces)

    @property
    def has_found(self) -> bool:
        """Whether the members have found the next result already, with or without this rank."""
        return self._returned < len(self.results)

    def note(self, result: Any) -> None:  # Any: what each of the calls returns
        """Add a result that the members have just found together."""
        self.results.append(result)

    def take(self) -> Any:  # Any: what each of the calls returns
        """Return the next result."""
        self._returned += 1
        return self.results[self._returned - 1]

    def learn(self, results: Sequence[Any]) -> None:
        """Take over the results of a member that has found more than this rank."""
        if len(results) > len(self.results):
            self.results = list(results)

    def clear(self) -> None:
        """Forget what belonged to a step that counts now."""
        self.outcomes.clear()
        self.pieces.clear()
        self.is_complete = False
        self.results, self._returned = [], 0
