"""Whether ranks agree about something that each of them has said."""

from collections import Counter
from collections.abc import Mapping


def odd_one_out(values: Mapping[int, object]) -> tuple[int, int] | None:
    """The lowest rank with the rarest value, and a rank with another; None if all have the same."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return None
    odd = min(values, key=lambda rank: (counts[values[rank]], rank))
    return odd, next(rank for rank in values if values[rank] != values[odd])
