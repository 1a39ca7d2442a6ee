"""Lanes: the seed of a lane's random numbers, and where a lane's gradient is stored or added."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.buffers import Carry


def seed_of(seed: int, step: int, lane: int) -> int:
    """Return the seed of a lane's random numbers: 63 bits that depend on these three numbers alone."""
    words = hashlib.blake2b(f"{seed} {step} {lane}".encode(), digest_size=8).digest()
    return int.from_bytes(words, "big") >> 1


@dataclass(frozen=True, slots=True)
class Deposit:
    """Where a gradient goes, of a lane or of a piece: it is stored in ``row``, or added to it if it ``is_added``.

    Then rows are added to each other: (left, right) in ``merges`` adds row ``right`` to row ``left``.
    """

    row: int
    is_added: bool
    merges: tuple[tuple[int, int], ...]


def plan_deposits(own: Sequence[range], lanes: int) -> tuple[Deposit, ...]:
    """Return a deposit for each of a rank's ``own`` lanes, or pieces of several lanes, which are in order.

    After the last, rows 0, 1, ... hold the rank's pieces.
    """
    deposits = []
    merges: list[tuple[int, int]] = []

    def merge(left: int, right: int) -> int:
        merges.append((left, right))
        return left

    carry: Carry[int] = Carry(lanes, merge)
    for each in own:
        merges.clear()
        row = len(carry.pieces())
        carry.add(each, row)
        is_added = bool(merges)  # the first merge adds the gradient itself, which needs no row
        deposits.append(Deposit(row - 1 if is_added else row, is_added, tuple(merges[1:])))
    return tuple(deposits)


def count_rows(deposits: tuple[Deposit, ...]) -> int:
    """Return the number of rows that the deposits need."""
    return max(deposit.row for deposit in deposits) + 1
