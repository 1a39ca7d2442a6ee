"""The strip of every rank over time: what it mostly did in each of a fixed number of cells."""

from collections.abc import Sequence
from enum import Enum

import msgspec
import numpy as np

from phalanx.telemetry.record import NOTHING, Activity

CELLS = 240
_TRAINING = "training"


class Doing(Enum):
    """What a rank mostly does in a cell: the letter that stands for it in a strip."""

    NOTHING = "."
    COMPUTING = "c"
    EXCHANGING = "x"
    WAITING = "w"
    SAVING = "s"
    RECOVERING = "r"


_COMPUTING = (Activity.DATA, Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER, Activity.EVALUATE)
_LETTERS = np.frombuffer("".join(each.value for each in Doing).encode(), np.uint8)
_ORDER = list(Doing)
_LEAST = 0.02  # of a cell: less than that was nothing


class Strips(msgspec.Struct, frozen=True, kw_only=True):
    """Cells of ``cell_s`` seconds from ``start`` on, in seconds since 1970: a text of letters for every rank.

    ``shares`` has what part of the recorded time a rank spent on what, by letter. ``waits`` has the seconds that a rank
    waited for another one: (rank, peer, seconds), the longest first.
    """

    start: float
    cell_s: float
    rows: dict[int, str]
    shares: dict[int, dict[str, float]]
    waits: list[tuple[int, int, float]]


class StripSheet:
    """Adds up what every rank did in each cell. Cells are of equal length, from ``start_ns`` on."""

    def __init__(self, start_ns: int, cell_ns: int, cells: int = CELLS) -> None:
        self._start_ns, self._cell_ns, self._cells = start_ns, cell_ns, cells
        self._seconds: dict[int, np.ndarray] = {}  # of a rank: a row for each of Doing
        self._waits: dict[tuple[int, int], float] = {}

    def add(self, table: np.ndarray, tracks: Sequence[str], wall_ns: int) -> None:
        """Add records of one worker, with times of the coordinator's clock, and ``wall_ns`` to add to these."""
        is_main = np.isin(table["track"], [number for number, name in enumerate(tracks) if name == _TRAINING])
        for rank in np.unique(table["rank"]).tolist():
            if rank != NOTHING:
                is_its = table["rank"] == rank
                self._add_rank(rank, table[is_its], is_main[is_its], wall_ns)

    def scroll_to(self, end_ns: int) -> None:
        """Drop the oldest cells until the last cell has this time."""
        by = (end_ns - self._start_ns) // self._cell_ns - self._cells + 1
        if by <= 0:
            return
        self._start_ns += by * self._cell_ns
        self._waits = {pair: seconds * 0.9 for pair, seconds in self._waits.items() if seconds > 1e-3}
        for seconds in self._seconds.values():
            seconds[:, :-by] = seconds[:, by:] if by < self._cells else 0.0
            seconds[:, max(0, self._cells - by) :] = 0.0

    def read(self) -> Strips:
        """Return the strips of all ranks that did anything."""
        rows = {rank: _letters(seconds, self._cell_ns) for rank, seconds in sorted(self._seconds.items())}
        waits = [(rank, peer, round(seconds, 4)) for (rank, peer), seconds in self._waits.items()]
        return Strips(
            start=self._start_ns / 1e9,
            cell_s=self._cell_ns / 1e9,
            rows={rank: row for rank, row in rows.items() if row.strip(Doing.NOTHING.value)},
            shares={rank: _shares(seconds) for rank, seconds in self._seconds.items()},
            waits=sorted(waits, key=lambda wait: -wait[2])[:200],
        )

    def _add_rank(self, rank: int, table: np.ndarray, is_main: np.ndarray, wall_ns: int) -> None:
        seconds = self._seconds.setdefault(rank, np.zeros((len(Doing), self._cells)))
        edges = self._start_ns - wall_ns + self._cell_ns * np.arange(self._cells + 1, dtype=np.int64)
        activity = table["activity"]
        exposed = _cover(table[is_main & (activity == Activity.EXPOSED)], edges)
        waiting = np.minimum(_cover(table[activity == Activity.WAIT], edges), exposed)
        waiting += _cover(table[is_main & (activity == Activity.COMMIT)], edges)
        others = is_main & np.isin(activity, (Activity.WEIGHTS, Activity.CALL))
        for doing, spent in (
            (Doing.COMPUTING, _cover(table[is_main & np.isin(activity, _COMPUTING)], edges)),
            (Doing.EXCHANGING, exposed - np.minimum(waiting, exposed) + _cover(table[others], edges)),
            (Doing.WAITING, waiting),
            (Doing.SAVING, _cover(table[is_main & (activity == Activity.CHECKPOINT)], edges)),
            (Doing.RECOVERING, _cover(table[activity == Activity.RECOVERY], edges)),
        ):
            seconds[_ORDER.index(doing)] += spent
        self._add_waits(rank, table[(activity == Activity.WAIT) & (table["peer"] != NOTHING)], edges)

    def _add_waits(self, rank: int, waits: np.ndarray, edges: np.ndarray) -> None:
        within = waits[(waits["end"] > edges[0]) & (waits["start"] < edges[-1])]
        for peer in np.unique(within["peer"]).tolist():
            spent = within[within["peer"] == peer]
            seconds = float((spent["end"] - spent["start"]).sum()) / 1e9
            self._waits[rank, peer] = self._waits.get((rank, peer), 0.0) + seconds


def _cover(table: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many seconds of each cell the records cover; of two that overlap, the later part counts once."""
    if not len(table):
        return np.zeros(len(edges) - 1)
    table = table[np.argsort(table["start"], kind="stable")]
    ends = np.maximum.accumulate(table["end"])
    starts = np.maximum(table["start"], np.concatenate(([table["start"][0]], ends[:-1])))
    lengths = np.maximum(ends - starts, 0)
    sums = np.concatenate(([0], np.cumsum(lengths)))
    places = np.searchsorted(starts, edges, "right")
    over = np.where(places > 0, np.maximum(ends[np.maximum(places - 1, 0)] - edges, 0), 0)
    covered: np.ndarray = np.maximum(np.diff(sums[places] - over) / 1e9, 0.0)
    return covered


def _letters(seconds: np.ndarray, cell_ns: int) -> str:
    spent = seconds.copy()
    spent[0] = _LEAST * cell_ns / 1e9
    spent[_ORDER.index(Doing.RECOVERING)] *= 1e6  # rare, and what people look for
    letters: bytes = _LETTERS[spent.argmax(axis=0)].tobytes()
    return letters.decode()


def _shares(seconds: np.ndarray) -> dict[str, float]:
    sums = seconds.sum(axis=1)
    total = float(sums.sum()) or 1.0
    return {doing.value: round(float(spent) / total, 3) for doing, spent in zip(_ORDER[1:], sums[1:], strict=True)}
