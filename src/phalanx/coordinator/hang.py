"""Which rank holds up a run at this moment, decided from what ``phalanx status`` shows."""

from collections import Counter
from typing import NamedTuple

from phalanx.coordinator.blame import blame
from phalanx.wire import Status


class Awaited(NamedTuple):
    """A rank that does not wait itself, and the ranks that wait for it, some of them by way of others."""

    rank: int
    waiters: tuple[int, ...]


def find_awaited(status: Status) -> Awaited | None:
    """Return the rank for which the most ranks wait; None if nobody waits."""
    waits = {each.rank: each.waits_for for each in status.workers if each.rank is not None and each.waits_for}
    ends = {rank: blame(rank, awaited[0], waits) for rank, awaited in waits.items()}
    counted = Counter(ends.values()).most_common(1)
    if not counted:
        return None
    rank = counted[0][0]
    return Awaited(rank, tuple(sorted(waiter for waiter, end in ends.items() if end == rank)))
