"""What all ranks must know about a step besides gradients: one row of f64 that is added up over the ranks.

Each value is set by one rank and zero on the others, or it is a count. So the sums are exact.
"""

import itertools
import math

import numpy as np

from phalanx.buffers import Array


class Summary:
    """The row, and its sections as views.

    ``squares`` has the sum of squares of each chunk of the mean, ``used`` how many lanes gave each parameter a
    gradient, and ``extra`` the caller's own values. ``prints``, if asked for, has two fingerprints for each chunk.
    """

    def __init__(self, chunks: int, parameters: int, extra: int = 0, *, has_prints: bool = False) -> None:
        ends = np.cumsum([0, chunks, parameters, extra, 2 * chunks * has_prints])
        self.row: Array = np.zeros(int(ends[-1]))
        self.squares, self.used, self.extra, prints = (self.row[start:stop] for start, stop in itertools.pairwise(ends))
        self.prints: Array = prints.reshape(2, -1)

    def clear(self) -> None:
        """Set all values to zero for a new step."""
        self.row.fill(0.0)

    @property
    def norm(self) -> float:
        """The norm of the whole mean; NaN if a value of it is not finite."""
        if not np.isfinite(self.squares).all():
            return math.nan
        return math.sqrt(math.fsum(self.squares))


def clip_factor(norm: float, limit: float) -> float:
    """Return the factor that brings gradients of this norm to at most ``limit``, as torch computes it."""
    return min(1.0, limit / (norm + 1e-6))
