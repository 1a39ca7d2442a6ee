"""What all ranks must know of a step besides gradients, as one row of f64 that is added up over the ranks.

Every slot is filled by one rank and left zero by the others, so that the sum is exact, or it counts.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from phalanx.buffers import Array


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of everything there are."""

    cuts: int
    parameters: int
    integers: int
    lanes: int
    size: int


class Summary:
    """The row, and its slots as views.

    ``squares`` has each cut's sum of squares, ``totals`` and ``counts`` each lane's loss and what it is the total of,
    ``used`` how many lanes gave each parameter a gradient, ``integers`` lane 0's integer buffers, ``stops`` how many
    ranks want to stop, and ``digests`` each rank's digest in 32-bit words.
    """

    def __init__(self, shape: Shape) -> None:
        lengths = shape.cuts, shape.lanes, shape.lanes, shape.parameters, shape.integers, 1, 2 * shape.size
        ends = np.cumsum([0, *lengths])
        self.row: Array = np.zeros(int(ends[-1]))
        views = [self.row[start:stop] for start, stop in itertools.pairwise(ends)]
        self.squares, self.totals, self.counts, self.used, self.integers, self.stops, digests = views
        self.digests = digests.reshape(shape.size, 2)

    def clear(self) -> None:
        """Begin a step."""
        self.row.fill(0.0)

    def set_digest(self, rank: int, digest: bytes) -> None:
        """Say which digest ``rank`` has."""
        self.digests[rank] = np.frombuffer(digest[:8], np.uint32)

    @property
    def loss(self) -> float:
        """The mean loss, added up in an order that does not depend on the ranks."""
        if not np.isfinite(self.totals).all():
            return math.nan
        return math.fsum(self.totals) / math.fsum(self.counts)

    @property
    def norm(self) -> float:
        """The norm of the whole gradient; not finite if any of it is not."""
        if not np.isfinite(self.squares).all():
            return math.nan
        return math.sqrt(math.fsum(self.squares))

    @property
    def has_one_digest(self) -> bool:
        """Whether all ranks have the same digest."""
        return bool((self.digests == self.digests[0]).all())
