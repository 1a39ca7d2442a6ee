"""What all ranks must know of a step besides gradients: one row of f64 that is added up over the ranks.

Each value is filled in by one rank and left zero by the others, so that the sum is exact, or it counts something.
"""

import itertools
import math

import numpy as np

from phalanx.buffers import Array


class Summary:
    """The row, and its sections as views.

    ``squares`` has the sum of squares of each chunk of the mean, ``used`` how many lanes gave each parameter a
    gradient, and ``extra`` what the caller adds.
    """

    def __init__(self, chunks: int, parameters: int, extra: int = 0) -> None:
        ends = np.cumsum([0, chunks, parameters, extra])
        self.row: Array = np.zeros(int(ends[-1]))
        self.squares, self.used, self.extra = (self.row[start:stop] for start, stop in itertools.pairwise(ends))

    def clear(self) -> None:
        """Start a step."""
        self.row.fill(0.0)

    @property
    def norm(self) -> float:
        """The norm of the whole mean; not finite if any of it is not."""
        if not np.isfinite(self.squares).all():
            return math.nan
        return math.sqrt(math.fsum(self.squares))


def clip_factor(norm: float, limit: float) -> float:
    """Return what to multiply gradients of this norm by, so that it is at most ``limit``; as torch computes it."""
    return min(1.0, limit / (norm + 1e-6))
