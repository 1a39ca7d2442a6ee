"""Following the files of a run. They only grow, so each look reads what is new."""

import os
from array import array
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from phalanx.coordinator import read_events
from phalanx.coordinator.events import Event
from phalanx.dashboard.strips import CELLS, Strips, StripSheet
from phalanx.dashboard.view import COLUMNS
from phalanx.plain_file import open_plain
from phalanx.telemetry import (
    RecordBatch,
    RecordTail,
    WorkerRecords,
    find_files,
    is_older,
    join_batches,
    read_between,
    read_start,
)
from phalanx.train.record import StepRecord

_CELL_NS = 250_000_000  # of the live strips: they show the last minute
_RECENT_STEPS = 20
_RECENT_BATCHES = 16  # of each worker, for the sentence of who is slow
_PIECE_BYTES = 1 << 24
_WINDOW_BYTES = 1 << 18  # of the records of one worker, for a strip that people zoom
_NAN = float("nan")
_decoder: msgspec.json.Decoder[StepRecord] = msgspec.json.Decoder(StepRecord)


class StepFollower:
    """The steps of a run as columns of numbers, and the last ones whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def read(self) -> None:
        """Read the steps that are new. A log that was cut is read again."""
        try:
            with open_plain(self._path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._read_bytes:
                    self._forget()
                while self._read_bytes < size:
                    file.seek(self._read_bytes)
                    whole, end, _ = (file.read(_PIECE_BYTES) or b"").rpartition(b"\n")
                    if not end:
                        return  # the last line is being written
                    self._read_bytes += len(whole) + 1
                    self._take(_decoder.decode_lines(whole))
        except OSError:
            return  # no step was taken yet

    def columns(self) -> dict[str, np.ndarray]:
        """Return a copy of all columns: ``COLUMNS``."""
        return {name: np.array(column, np.float64) for name, column in self._columns.items()}

    @property
    def recent(self) -> list[StepRecord]:
        """The last steps, after the last one with a held-out loss."""
        evaluated = [self._evaluated] if self._evaluated and self._evaluated.step < self._last[0].step else []
        return [*evaluated, *self._last]

    def _forget(self) -> None:
        self._read_bytes = 0
        self._columns = {name: array("d") for name in COLUMNS}
        self._last: deque[StepRecord] = deque(maxlen=_RECENT_STEPS)
        self._evaluated: StepRecord | None = None
        self.saved: list[int] = []
        """The steps after which a checkpoint was saved."""

    def _take(self, records: Sequence[StepRecord]) -> None:
        for name in ("step", "loss", "norm", "lr"):
            self._columns[name].extend(map(attrgetter(name), records))
        self._columns["eval_loss"].extend(_NAN if each.eval_loss is None else each.eval_loss for each in records)
        self._columns["tokens_per_s"].extend(each.tokens / each.seconds if each.seconds else _NAN for each in records)
        self._last.extend(records[-_RECENT_STEPS:])
        self._evaluated = next((each for each in reversed(records) if each.eval_loss is not None), self._evaluated)
        self.saved += [each.step + 1 for each in records if each.state_digest is not None]


class EventFollower:
    """The events of a run. There are few, so a file that has grown is read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self.events: list[Event] = []

    def read(self) -> bool:
        """Read the events if there are new ones, and return whether there are."""
        try:
            size = self._path.stat().st_size
        except OSError:
            return False
        if size == self._size:
            return False
        self._size = size
        self.events = list(read_events(self._path))
        return True


class RecordFollower:
    """The records of all workers of a run: strips of the last minute, and what is needed to say who is slow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, RecordTail] = {}
        self._recent: dict[str, deque[RecordBatch]] = {}
        self._sheet: StripSheet | None = None
        self._end_ns = 0
        self._starts: dict[Path, int] = {}

    def read(self) -> bool:
        """Read the records that are new, and return whether there are any."""
        paths = [path for path in find_files(self._folder) if not is_older(path)]
        new = [batch for path in paths for batch in self._tails.setdefault(path, RecordTail(path)).read()]
        if not new:
            return False
        self._end_ns = max(self._end_ns, *(batch.end_ns for batch in new))
        if self._sheet is None:
            self._sheet = StripSheet(self._end_ns - CELLS * _CELL_NS, _CELL_NS)
        self._sheet.scroll_to(self._end_ns)
        self._sheet.add(new)
        for batch in new:
            self._recent.setdefault(batch.worker, deque(maxlen=_RECENT_BATCHES)).append(batch)
        return True

    def live(self) -> Strips | None:
        """Return the strips of the last minute; None if nothing was recorded."""
        return self._sheet.read() if self._sheet else None

    def window(self, start: float, end: float) -> Strips:
        """Return strips between two times since 1970. Of many records only some are read, evenly spread."""
        start_ns, end_ns = int(start * 1e9), int(end * 1e9)
        sheet = StripSheet(start_ns, max(1, (end_ns - start_ns) // CELLS))
        for path in find_files(self._folder):
            sheet.add(read_between(path, start_ns, end_ns, _WINDOW_BYTES))
        return sheet.read()

    def span(self) -> tuple[float, float] | None:
        """Return the times of the first and the last record since 1970; None if there are none."""
        for path in find_files(self._folder):
            if path not in self._starts and (start := read_start(path)):
                self._starts[path] = start
        return (min(self._starts.values()) / 1e9, self._end_ns / 1e9) if self._starts and self._end_ns else None

    def recent(self) -> list[WorkerRecords]:
        """Return the last records of all workers that have any near the end of the run."""
        recent = {
            worker: batches
            for worker, batches in self._recent.items()
            if self._end_ns - batches[-1].end_ns < CELLS * _CELL_NS
        }
        return [join_batches(worker, list(batches)) for worker, batches in sorted(recent.items())]
