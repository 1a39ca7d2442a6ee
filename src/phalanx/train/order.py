"""Which samples a lane gets: a permutation for each pass that is computed, never stored."""

import hashlib
import math

from phalanx.buffers import even_part
from phalanx.errors import ConfigError

_ROUNDS = 4


def samples_of(step: int, lane: int, *, lanes: int, batch: int, length: int, seed: int) -> tuple[int, ...]:
    """Return the sample numbers of one lane of a step: its even part of the step's batch.

    Step s has the positions from s * batch up to (s + 1) * batch in an endless row of passes, each of which has
    every one of the ``length`` samples once, in an order of its own.
    """
    if not 0 <= lane < lanes:
        raise ConfigError(f"there is no lane {lane} of {lanes}: lanes are numbered from 0")
    part = even_part(batch, lanes, lane)
    positions = range(step * batch + part.start, step * batch + part.stop)
    return tuple(permute(position % length, length, seed, position // length) for position in positions)


def permute(index: int, length: int, seed: int, pass_number: int) -> int:
    """Return where ``index`` goes in this pass's permutation of ``range(length)``. Cost: eight hashes or so."""
    if not 0 <= index < length:
        raise ConfigError(f"there is no index {index} in a length of {length}: stay within it")
    state = hashlib.blake2b(f"{seed} {pass_number}".encode(), digest_size=8)
    rows = math.isqrt(length - 1) + 1
    columns = -(-length // rows)
    # The grid has a few cells more than the length. From those, walk on: a permutation always leads back.
    index = _shuffle(index, rows, columns, state)
    while index >= length:
        index = _shuffle(index, rows, columns, state)
    return index


def shard_batches(batches: int, rank: int, size: int) -> range:
    """Return the batches of one rank: every ``size``-th from ``rank`` on, so that each batch has one owner."""
    if not 0 <= rank < size:
        raise ConfigError(f"there is no rank {rank} in a group of {size}: ranks are numbered from 0")
    return range(rank, batches, size)


def _shuffle(index: int, rows: int, columns: int, state: hashlib.blake2b) -> int:
    row, column = divmod(index, columns)
    for number in range(_ROUNDS):  # of a Feistel network: each turn adds to one half what it makes of the other
        row = (row + _mix(state, 2 * number, column)) % rows
        column = (column + _mix(state, 2 * number + 1, row)) % columns
    return row * columns + column


def _mix(state: hashlib.blake2b, turn: int, value: int) -> int:
    mixed = state.copy()
    mixed.update(b"%d %d" % (turn, value))
    return int.from_bytes(mixed.digest(), "little")
