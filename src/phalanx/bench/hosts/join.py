"""What ``phalanx bench join`` measures: how long a worker that joins a run waits until it trains."""

import msgspec

from phalanx.bench.text import format_time

HEADINGS = ("donors", "state", "line", "until it trains", "times the line")
WIDTH = 1024
STATE_BYTES_OF_LAYER = 3 * 4 * WIDTH * WIDTH  # weights and AdamW's two moments, in f32


class JoinTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each worker is told: the last of these network namespaces is for the one that joins, and ``layers``."""

    namespaces: tuple[str, ...]
    layers: int


class JoinTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of the worker that joined: the seconds from its admission to its first lane."""

    seconds: float


class JoinRow(msgspec.Struct, frozen=True):
    """One measurement, and how long the line of the joiner needs for the bytes of the state."""

    donors: int
    state_bytes: int
    rate_bits: int
    line_s: float
    seconds: float
    times_line: float


def make_row(donors: int, layers: int, rate_bits: int, time: JoinTime) -> JoinRow:
    """Return the figures of a worker whose line has ``rate_bits``."""
    state_bytes = layers * STATE_BYTES_OF_LAYER
    line_s = 8 * state_bytes / rate_bits
    return JoinRow(donors, state_bytes, rate_bits, line_s, time.seconds, time.seconds / line_s)


def cells(row: JoinRow) -> tuple[str, ...]:
    """Return a line of the table for people."""
    line = f"{format_time(row.line_s)} at {row.rate_bits / 1e9:g} Gbit/s"
    state = f"{row.state_bytes / 1e6:.0f} MB"
    return str(row.donors), state, line, format_time(row.seconds), f"{row.times_line:.2f}"
