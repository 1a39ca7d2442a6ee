"""The lines of the page's charts: any number of steps becomes a bounded number of points, and spikes stay."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MOST_BINS = 400


@dataclass(frozen=True, slots=True)
class Grid:
    """The steps at which charts have points: every step, or two in each of ``_MOST_BINS`` bins.

    The lines of two runs over the same grid can be laid over each other.
    """

    first: int
    last: int

    @property
    def bins(self) -> int:
        """How many bins there are."""
        return min(_MOST_BINS, self.last - self.first + 1)

    @property
    def is_exact(self) -> bool:
        """Whether every step has a bin of its own."""
        return self.bins == self.last - self.first + 1

    def places(self) -> list[float]:
        """Return the steps of all points."""
        if self.is_exact:
            return [float(step) for step in range(self.first, self.last + 1)]
        edges = np.linspace(self.first, self.last + 1, 2 * self.bins, endpoint=False)
        return [float(each) for each in edges]

    def line(self, steps: np.ndarray, values: np.ndarray) -> list[float | None]:
        """Return the points of a line: of each bin the least and the greatest value.

        A bin without a value, or with only NaN, has None.
        """
        is_known = np.isfinite(values) & (steps >= self.first) & (steps <= self.last)
        steps, values = steps[is_known], values[is_known]
        places = (steps - self.first) * self.bins // (self.last - self.first + 1)
        starts = np.flatnonzero(np.diff(places, prepend=-1))  # steps come in order
        each = 1 if self.is_exact else 2
        points: list[float | None] = [None] * (each * self.bins)
        if not len(values):
            return points
        least, most = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        for place, low, high in zip(places[starts].tolist(), least.tolist(), most.tolist(), strict=True):
            begin = each * int(place)
            points[begin] = _shorten(low)
            points[begin + each - 1] = _shorten(high)
        return points


def _shorten(value: float) -> float:
    """Return a value with as many digits as a chart can show."""
    return float(f"{value:.6g}")


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Return the mean of each value and those before it, ``width`` in all, as far as there are so many."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    mean: np.ndarray = (sums[ends] - sums[starts]) / np.maximum(ends - starts, 1)
    return mean


def grid_of(runs: Sequence[np.ndarray]) -> Grid | None:
    """Return the grid for the steps of some runs; None if no run has a step."""
    ends = [(int(steps[0]), int(steps[-1])) for steps in runs if len(steps)]
    return Grid(min(first for first, _ in ends), max(last for _, last in ends)) if ends else None
