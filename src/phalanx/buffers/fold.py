"""The canonical tree: which lanes are added to which, in an order that does not depend on the number of ranks.

A node over n leaves splits at the largest power of two below n, so seven leaves give ((0 1)(2 3)) ((4 5) 6).
"""

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from phalanx.errors import ConfigError

T = TypeVar("T")


def halves(node: range) -> tuple[range, range]:
    """Return the two subtrees of a node with two or more leaves."""
    half = 1 << (len(node) - 1).bit_length() - 1
    return node[:half], node[half:]


def pieces(start: int, stop: int, leaves: int) -> tuple[range, ...]:
    """Return the fewest whole subtrees that cover the leaves from ``start`` up to ``stop``, in order."""
    if not 0 <= start <= stop <= leaves:
        raise ConfigError(f"a tree over {leaves} leaves has no leaves {start} to {stop}: stay within it")
    return _cover(range(start, stop), range(leaves))


def cover(wanted: Collection[int], leaves: int) -> tuple[range, ...]:
    """Return the fewest whole subtrees that cover the ``wanted`` leaves and no others, in order."""
    starts = [leaf for leaf in sorted(wanted) if leaf - 1 not in wanted]
    stops = [leaf + 1 for leaf in sorted(wanted) if leaf + 1 not in wanted]
    return tuple(piece for start, stop in zip(starts, stops, strict=True) for piece in pieces(start, stop, leaves))


class Carry(Generic[T]):
    """The sums of lanes so far, as whole subtrees. Two neighbours are added as a binary counter carries.

    ``combine(left, right)`` returns the sum of two neighbours. It may reuse the memory of either.
    """

    __slots__ = ("_combine", "_held", "_leaves")

    def __init__(self, leaves: int, combine: Callable[[T, T], T]) -> None:
        self._leaves = leaves
        self._combine = combine
        self._held: list[tuple[range, T]] = []

    def add(self, lanes: range, value: T) -> None:
        """Add the value of a later lane, or of a whole subtree of lanes."""
        if self._held and lanes.start < self._held[-1][0].stop:
            raise ConfigError(f"lane {lanes.start} cannot follow lane {self._held[-1][0][-1]}: add lanes in order")
        (lanes,) = pieces(lanes.start, lanes.stop, self._leaves)
        while self._held and self._is_whole(self._held[-1][0], lanes):
            left, held = self._held.pop()
            lanes, value = range(left.start, lanes.stop), self._combine(held, value)
        self._held.append((lanes, value))

    def _is_whole(self, left: range, right: range) -> bool:
        return left.stop == right.start and len(pieces(left.start, right.stop, self._leaves)) == 1

    def pieces(self) -> tuple[tuple[range, T], ...]:
        """Return the sums so far and the lanes of each, as the function ``pieces`` returns them."""
        return tuple(self._held)


def _cover(wanted: range, node: range) -> tuple[range, ...]:
    if wanted.stop <= node.start or node.stop <= wanted.start:
        return ()
    if wanted.start <= node.start and node.stop <= wanted.stop:
        return (node,)
    left, right = halves(node)
    return _cover(wanted, left) + _cover(wanted, right)
