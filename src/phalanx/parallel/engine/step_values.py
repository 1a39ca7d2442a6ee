"""The values that an engine adds to the summary of a step: losses, integer buffers, digests, requests to stop."""

import itertools
import math

import numpy as np

from phalanx.buffers import Array


class StepValues:
    """The engine's section of the summary's row, as views.

    ``totals`` has the loss of each lane, ``integers`` the integer buffers of lane 0, and ``digests`` the digest of each
    rank in 32-bit words. ``lane_seconds`` is how long each rank computed lanes. ``stops`` is the number of ranks that
    want all to stop, and ``leaves`` the number of those that want to leave.
    """

    def __init__(self, row: Array, lanes: int, size: int) -> None:
        ends = np.cumsum([0, lanes, 1, 1, 2 * size, size])
        sections = (row[start:stop] for start, stop in itertools.pairwise(ends))
        self.totals, self.stops, self.leaves, digests, self.lane_seconds = sections
        self.digests = digests.reshape(size, 2)
        self.integers = row[ends[-1] :]

    @staticmethod
    def length(lanes: int, size: int, integers: int) -> int:
        """Return how many values the section has."""
        return lanes + 2 + 3 * size + integers

    def set_digest(self, rank: int, digest: bytes) -> None:
        """Set the digest of ``rank``."""
        self.digests[rank] = np.frombuffer(digest[:8], np.uint32)

    def loss(self, counts: Array) -> float:
        """Return the mean loss over all lanes, with the same bits for any number of ranks."""
        if not np.isfinite(self.totals).all():
            return math.nan
        total = math.fsum(counts)
        return math.fsum(self.totals) / total if total else math.nan

    @property
    def is_last_step(self) -> bool:
        """Whether a rank wants all to stop, or all of them want to leave."""
        return bool(self.stops[0] or self.leaves[0] == len(self.digests))

    @property
    def has_one_digest(self) -> bool:
        """Whether all ranks have the same digest."""
        return bool((self.digests == self.digests[0]).all())
