"""Which samples a lane gets. The order of each pass is a permutation that is computed, never stored."""

import hashlib
import math

from phalanx.buffers import even_part
from phalanx.errors import ConfigError

_ROUNDS = 4


def samples_of(step: int, lane: int, *, lanes: int, batch: int, length: int, seed: int) -> tuple[int, ...]:
    """Return the sample numbers of one lane of a step: its even part of the step's batch.

    Step s has the positions from s * batch up to (s + 1) * batch in an endless sequence of passes. Each pass has every
    one of the ``length`` samples once, in its own order.
    """
    if not 0 <= lane < lanes:
        raise ConfigError(f"there is no lane {lane} of {lanes}: lanes are numbered from 0")
    part = even_part(batch, lanes, lane)
    positions = range(step * batch + part.start, step * batch + part.stop)
    return tuple(permute(position % length, length, seed, position // length) for position in positions)


def permute(index: int, length: int, seed: int, pass_number: int) -> int:
    """Return the sample at ``index`` in this pass's permutation of ``range(length)``. It costs about eight hashes."""
    if not 0 <= index < length:
        raise ConfigError(f"there is no index {index} in a length of {length}: stay within it")
    state = hashlib.blake2b(f"{seed} {pass_number}".encode(), digest_size=8)
    rows = math.isqrt(length - 1) + 1
    columns = -(-length // rows)
    # The grid has slightly more cells than samples. Permute again while outside: that always leads back inside.
    index = _shuffle(index, rows, columns, state)
    while index >= length:
        index = _shuffle(index, rows, columns, state)
    return index


def _shuffle(index: int, rows: int, columns: int, state: hashlib.blake2b) -> int:
    row, column = divmod(index, columns)
    for number in range(_ROUNDS):  # of a Feistel network: each round adds a hash of one half to the other
        row = (row + _mix(state, 2 * number, column)) % rows
        column = (column + _mix(state, 2 * number + 1, row)) % columns
    return row * columns + column


def _mix(state: hashlib.blake2b, number: int, value: int) -> int:
    mixed = state.copy()
    mixed.update(b"%d %d" % (number, value))
    return int.from_bytes(mixed.digest(), "little")
