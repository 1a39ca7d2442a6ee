"""Adding up the records of a run: how long each rank took for what in each step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.errors import ConfigError
from phalanx.telemetry.record import NOTHING, Activity, WorkerRecords

_TRAINING = "training"
_OWN = (Activity.DATA, Activity.FORWARD, Activity.BACKWARD)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The seconds of every step. All tables have a row for each step and a column for each rank.

    ``spent`` has the time of each activity in the training thread; a garbage collection is taken out of what it has
    interrupted. ``lanes`` is how many lanes a rank computed. ``step_s`` is how long each step took, from its begin
    to that of the next, and ``exchange_s`` how long buckets were still exchanged after the last rank was ready with
    all of its own. ``link_waits[r, p]`` is how long rank ``r`` waited in all for buckets of ``p`` that had left ``p``.
    """

    steps: np.ndarray
    ranks: np.ndarray
    spent: dict[Activity, np.ndarray]
    lanes: np.ndarray
    step_s: np.ndarray
    exchange_s: np.ndarray
    link_waits: np.ndarray

    @property
    def total_s(self) -> float:
        """The seconds of all steps."""
        return float(self.step_s.sum())


def add_up(workers: Sequence[WorkerRecords]) -> StepTimes:
    """Return the times of all steps of which every rank of the last epoch has records."""
    if not workers:
        raise ConfigError("there are no records: has the run taken a step?")
    rows = [_prepare(each) for each in workers]
    table, seconds, is_main = (np.concatenate(each) for each in zip(*rows, strict=True))
    is_latest = _find_latest(table, np.repeat(np.arange(len(rows)), [len(each[0]) for each in rows]))
    table, seconds, is_main = table[is_latest], seconds[is_latest], is_main[is_latest]
    steps, ranks = _complete(table)
    is_in = np.isin(table["step"], steps) & np.isin(table["rank"], ranks)
    table, seconds, is_main = table[is_in], seconds[is_in], is_main[is_in]
    grid = _Grid(steps, ranks)
    spent = {
        activity: grid.add_up(table, seconds * ((table["activity"] == activity) & is_main)) for activity in Activity
    }
    spent[Activity.COLLECT] = grid.add_up(table, seconds * (table["activity"] == Activity.COLLECT))
    starts = grid.first_starts(table[table["activity"] == Activity.STEP])
    own_s = (spent[Activity.STEP] + spent[Activity.CHECKPOINT] + spent[Activity.EVALUATE]).max(axis=1, initial=0.0)
    follows = np.append(np.diff(steps) == 1, False)  # behind the last one there is none
    step_s = np.where(follows, np.append(np.diff(starts), 0) / 1e9, own_s)
    return StepTimes(
        steps,
        ranks,
        spent,
        grid.add_up(table, (table["activity"] == Activity.DATA).astype(float)),
        step_s,
        _exposed_exchange(table, steps),
        _waits_for_links(table, grid),
    )


@dataclass(frozen=True, slots=True)
class _Grid:
    """The place of records in tables with a row for each step and a column for each rank."""

    steps: np.ndarray
    ranks: np.ndarray

    def add_up(self, table: np.ndarray, values: np.ndarray) -> np.ndarray:
        cells = self.row(table["step"]) * len(self.ranks) + self.column(table["rank"])
        size = len(self.steps) * len(self.ranks)
        return np.bincount(cells, values, size).reshape(len(self.steps), len(self.ranks))

    def first_starts(self, table: np.ndarray) -> np.ndarray:
        starts = np.full(len(self.steps), np.iinfo(np.int64).max)
        np.minimum.at(starts, self.row(table["step"]), table["start"])
        return starts

    def row(self, steps: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.steps, steps)

    def column(self, ranks: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.ranks, ranks)


def _prepare(worker: WorkerRecords) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the records of a worker, their seconds without garbage collections, and which are of its main thread."""
    table = worker.table[worker.table["rank"] != NOTHING]
    seconds = (table["end"] - table["start"]) / 1e9
    main = [number for number, name in enumerate(worker.tracks) if name == _TRAINING]
    is_main = np.isin(table["track"], main)
    collections = np.flatnonzero(table["activity"] == Activity.COLLECT)
    places = np.flatnonzero(np.isin(table["activity"], _OWN) & is_main)  # none of them is within another
    if len(collections) and len(places):
        middles = (table["start"][collections] + table["end"][collections]) // 2
        before = places[np.maximum(np.searchsorted(table["start"][places], middles, "right") - 1, 0)]
        is_within = (table["start"][before] <= middles) & (middles < table["end"][before])
        np.subtract.at(seconds, before[is_within], seconds[collections][is_within])
    return table, np.maximum(seconds, 0.0), is_main


def _find_latest(table: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """Return which records are of the worker that was the last to take a step as its rank: a run may have resumed."""
    keys = (table["step"].astype(np.int64) << 16) | table["rank"]
    taken = np.flatnonzero(table["activity"] == Activity.STEP)
    taken = taken[np.lexsort((table["end"][taken], keys[taken]))]
    if not len(taken):
        return np.ones(len(table), bool)
    places = np.searchsorted(keys[taken], keys, "right") - 1
    last = taken[np.maximum(places, 0)]
    is_latest: np.ndarray = (keys[last] != keys) | (workers[last] == workers)
    return is_latest


def _complete(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of the last epoch, and the steps of which all of these have a record."""
    ended = table[table["activity"] == Activity.STEP]
    ranks = np.unique(ended["rank"][ended["epoch"] == ended["epoch"].max(initial=0)])
    pairs = np.unique(ended[np.isin(ended["rank"], ranks)][["step", "rank"]])
    steps, counts = np.unique(pairs["step"], return_counts=True)
    return steps[counts == len(ranks)], ranks


def _exposed_exchange(table: np.ndarray, steps: np.ndarray) -> np.ndarray:
    ready, ended = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    for activity, latest, field in ((Activity.READY, ready, "start"), (Activity.EXCHANGE, ended, "end")):
        rows = table[table["activity"] == activity]
        np.maximum.at(latest, np.searchsorted(steps, rows["step"]), rows[field])
    return np.where((ready > 0) & (ended > 0), np.maximum(ended - ready, 0), 0) / 1e9


def _waits_for_links(table: np.ndarray, grid: _Grid) -> np.ndarray:
    """Return for how long each rank waited for each other one, once the bucket had left that one."""
    waited = np.zeros((len(grid.ranks), len(grid.ranks)))
    ready = table[(table["activity"] == Activity.READY) & (table["number"] != NOTHING)]
    waits = table[(table["activity"] == Activity.WAIT) & (table["number"] != NOTHING)]
    waits = waits[np.isin(waits["peer"], grid.ranks)]
    if not len(ready) or not len(waits):
        return waited
    keys = _bucket_keys(ready["step"], ready["rank"], ready["number"])
    order = np.lexsort((ready["start"], keys))
    keys, left = keys[order], ready["start"][order]
    wanted = _bucket_keys(waits["step"], waits["peer"], waits["number"])
    places = np.searchsorted(keys, wanted, "right") - 1  # the last time, if a step was repeated
    is_known = (places >= 0) & (keys[np.maximum(places, 0)] == wanted)
    began = np.maximum(waits["start"], left[np.maximum(places, 0)])
    seconds = np.maximum(waits["end"] - began, 0) / 1e9 * is_known
    np.add.at(waited, (grid.column(waits["rank"]), grid.column(waits["peer"])), seconds)
    return waited


def _bucket_keys(steps: np.ndarray, ranks: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    return (steps.astype(np.int64) << 32) | (ranks.astype(np.int64) << 16) | buckets.astype(np.int64)
