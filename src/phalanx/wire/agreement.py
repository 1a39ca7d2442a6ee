"""Finding a rank whose value differs from the others' values."""

from collections import Counter
from collections.abc import Mapping


def odd_one_out(values: Mapping[int, object]) -> tuple[int, int] | None:
    """Return the lowest rank with the rarest value, and a rank with another value; None if all values are equal."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return None
    odd = min(values, key=lambda rank: (counts[values[rank]], rank))
    return odd, next(rank for rank in values if values[rank] != values[odd])
