"""One exchange of a DataParallel: what each rank counts for, what has come, and what has left."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.buffers import Array
from phalanx.parallel.gradients import Parcel
from phalanx.transport import Pending


class Shares(NamedTuple):
    """What each rank's gradients count for in an exchange, and which ranks still work."""

    weights: Array
    active: Array

    def scale(self, rank: int) -> float:
        """How often a rank's gradient is in the sum that is divided by the number of ranks."""
        total = float(self.weights.sum())
        return float(self.weights[rank]) * len(self.weights) / total if total else 0.0

    @property
    def is_anybody_at_work(self) -> bool:
        """Whether the exchange is of any use."""
        return bool(self.active.any())

    @property
    def first_at_work(self) -> int:
        """The first rank that still works."""
        return int(np.argmax(self.active))

    @property
    def first_with_weight(self) -> int:
        """The first rank that counts."""
        return int(np.argmax(self.weights > 0))


class Turn:
    """One exchange of all gradients: what has come, what has left, and what is waited for."""

    def __init__(self, parcels: Sequence[Parcel], shares: Pending[Shares]) -> None:
        self.shares = shares
        self.came: set[int] = set()
        self.left: list[Pending[set[int]]] = []
        self._waiting = list(parcels)[::-1]

    def take(self, number: int) -> Iterator[Parcel]:
        """Note that a parameter's gradient has come, and yield what can leave: in order, or ranks would differ."""
        self.came.add(number)
        while self._waiting and self.came.issuperset(self._waiting[-1].numbers):
            yield self._waiting.pop()
