"""The strip of every rank over time: what it mostly did in each of a fixed number of cells."""

from collections.abc import Iterable
from enum import Enum

import msgspec
import numpy as np

from phalanx.telemetry.record import NOTHING, RECORD, Activity, RecordBatch

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
_FADE = 0.9  # of a wait, at every look: old ones matter less and less
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

    def add(self, batches: Iterable[RecordBatch]) -> None:
        """Add records of any workers. All of them are added up at once, so that many workers cost little more."""
        pieces = [piece for batch in batches if len(piece := _prepare(batch))]
        table = np.concatenate(pieces) if pieces else np.zeros(0, _ROW)
        end_ns = self._start_ns + self._cells * self._cell_ns
        table = table[(table["end"] > self._start_ns) & (table["start"] < end_ns)]
        if not len(table):
            return
        first = max(0, (int(table["start"].min()) - self._start_ns) // self._cell_ns)
        last = min(self._cells, -(-(int(table["end"].max()) - self._start_ns) // self._cell_ns))
        edges = self._start_ns + self._cell_ns * np.arange(first, last + 1, dtype=np.int64)
        ranks = np.unique(table["rank"])
        for doing, spent in _spend(table, ranks, edges).items():
            for rank, row in zip(ranks.tolist(), spent, strict=True):
                seconds = self._seconds.setdefault(rank, np.zeros((len(Doing), self._cells)))
                seconds[_ORDER.index(doing), first:last] += row
        self._add_waits(table[(table["activity"] == Activity.WAIT) & (table["peer"] != NOTHING)])

    def scroll_to(self, end_ns: int) -> None:
        """Drop the oldest cells until the last cell has this time."""
        by = (end_ns - self._start_ns) // self._cell_ns - self._cells + 1
        if by <= 0:
            return
        self._start_ns += by * self._cell_ns
        self._waits = {pair: seconds * _FADE for pair, seconds in self._waits.items() if seconds > 1e-3}
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

    def _add_waits(self, waits: np.ndarray) -> None:
        pairs, places = np.unique(waits[["rank", "peer"]], return_inverse=True)
        sums = np.bincount(places, (waits["end"] - waits["start"]) / 1e9, len(pairs))
        for (rank, peer), seconds in zip(pairs.tolist(), sums.tolist(), strict=True):
            self._waits[rank, peer] = self._waits.get((rank, peer), 0.0) + seconds


_ROW = np.dtype(
    [("start", "<i8"), ("end", "<i8"), ("rank", "<u2"), ("peer", "<u2"), ("activity", "u1"), ("is_main", "?")]
)


def _prepare(batch: RecordBatch) -> np.ndarray:
    """Return what strips need of the records of a batch, with times since 1970."""
    table = np.frombuffer(batch.records, RECORD)
    table = table[table["rank"] != NOTHING]
    rows = np.empty(len(table), _ROW)
    for name in ("rank", "peer", "activity"):
        rows[name] = table[name]
    for name in ("start", "end"):
        rows[name] = table[name] + (batch.offset_ns + batch.wall_ns)
    rows["is_main"] = np.array([name == _TRAINING for name in batch.tracks])[table["track"]]
    return rows


def _spend(table: np.ndarray, ranks: np.ndarray, edges: np.ndarray) -> dict[Doing, np.ndarray]:
    """Return the seconds of every rank in every cell, by what it did."""
    is_main, activity = table["is_main"], table["activity"]

    def cover(is_wanted: np.ndarray) -> np.ndarray:
        return _cover(table[is_wanted], ranks, edges)

    exposed = cover(is_main & (activity == Activity.EXPOSED))
    awaited = np.minimum(cover(activity == Activity.WAIT), exposed)
    return {
        Doing.COMPUTING: cover(is_main & np.isin(activity, _COMPUTING)),
        Doing.EXCHANGING: exposed - awaited + cover(is_main & np.isin(activity, (Activity.WEIGHTS, Activity.CALL))),
        Doing.WAITING: awaited + cover(is_main & (activity == Activity.COMMIT)),
        Doing.SAVING: cover(is_main & (activity == Activity.CHECKPOINT)),
        Doing.RECOVERING: cover(activity == Activity.RECOVERY),
    }


def _cover(table: np.ndarray, ranks: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many seconds of each cell the records of each rank cover, without counting any time twice.

    The ranks are laid behind each other on one line of time, so that all of them are added up at once.
    """
    if not len(table):
        return np.zeros((len(ranks), len(edges) - 1))
    length = edges[-1] - edges[0]
    shift = np.searchsorted(ranks, table["rank"]) * length - edges[0]
    starts = np.clip(table["start"], edges[0], edges[-1]) + shift
    ends = np.clip(table["end"], edges[0], edges[-1]) + shift
    order = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate(ends[order])
    starts = np.maximum(starts[order], np.concatenate(([0], ends[:-1])))
    sums = np.concatenate(([0], np.cumsum(np.maximum(ends - starts, 0))))
    wanted = ((edges - edges[0])[None, :] + length * np.arange(len(ranks))[:, None]).ravel()
    places = np.searchsorted(starts, wanted, "right")
    over = np.where(places > 0, np.maximum(ends[np.maximum(places - 1, 0)] - wanted, 0), 0)
    covered: np.ndarray = np.maximum(np.diff((sums[places] - over).reshape(len(ranks), -1), axis=1) / 1e9, 0.0)
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
