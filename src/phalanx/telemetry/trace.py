"""Turning records into a trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

Every worker is a process of the trace, and every thread of it a track. An arrow leads from the moment at which a bucket
leaves a rank to the exchange of that bucket: on the rank itself, and, from the rank that was the last to be ready, on
all others. Nobody can have finished that exchange before.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from phalanx.telemetry.record import NOTHING, Activity, WorkerRecords
from phalanx.telemetry.torch_profile import TorchProfile

_NUMBERED = {
    Activity.DATA: "lane",
    Activity.FORWARD: "lane",
    Activity.BACKWARD: "lane",
    Activity.READY: "bucket",
    Activity.EXCHANGE: "bucket",
    Activity.WAIT: "bucket",
    Activity.COLLECT: "generation",
}
_KNOWN = frozenset(Activity)
_SHORTEST_US = 0.001  # an instant, as a slice to which an arrow can point

Event = dict[str, Any]  # Any: words, numbers, and arguments of both


def write_trace(workers: Sequence[WorkerRecords], steps: range, profiles: Sequence[TorchProfile] = ()) -> bytes:
    """Return the trace of some steps as JSON."""
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": list(trace_events(workers, steps, profiles))})


def trace_events(
    workers: Sequence[WorkerRecords], steps: range, profiles: Sequence[TorchProfile] = ()
) -> Iterator[Event]:
    """Yield the events of a trace of some steps, and of profiles of workers. Its time begins with the first record."""
    tables = [_select(each.table, steps) for each in workers]
    began = min((int(table["start"].min()) for table in tables if len(table)), default=0)
    for number, (worker, table) in enumerate(zip(workers, tables, strict=True), 1):
        if len(table):
            yield from _describe(number, worker, table)
            yield from (_slice(number, row, began) for row in table)
    yield from _arrows(tables, began)
    for profile in profiles:
        place = profile.find_worker(workers)
        yield from profile.merge(place + 1, workers[place], tables[place], began)


def _select(table: np.ndarray, steps: range) -> np.ndarray:
    is_of_rank = table["rank"] != NOTHING
    selected: np.ndarray = table[is_of_rank & (table["step"] >= steps.start) & (table["step"] < steps.stop)]
    return selected


def _describe(process: int, worker: WorkerRecords, table: np.ndarray) -> Iterator[Event]:
    rank = int(table["rank"][-1])
    yield _meta("process_name", process, 0, name=f"rank {rank} ({worker.worker})")
    yield _meta("process_sort_index", process, 0, sort_index=rank)
    for track in np.unique(table["track"]).tolist():
        yield _meta("thread_name", process, track + 1, name=worker.tracks[track])


def _meta(what: str, process: int, thread: int, **arguments: object) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _slice(process: int, row: np.void, began: int) -> Event:
    kind = int(row["activity"])
    activity = Activity(kind) if kind in _KNOWN else None
    name = activity.name.lower() if activity else f"activity {kind}"
    arguments = {"step": int(row["step"]), "epoch": int(row["epoch"]), "rank": int(row["rank"])}
    number, peer = int(row["number"]), int(row["peer"])
    if activity in _NUMBERED and number != NOTHING:
        arguments[_NUMBERED[activity]] = number
        name += f" {_NUMBERED[activity]} {number}" if activity is not Activity.WAIT else ""
    if peer != NOTHING:
        arguments["peer"] = peer
        name += f" for rank {peer}"
    start, end = int(row["start"]), int(row["end"])
    return {
        "ph": "X",
        "name": name,
        "cat": "phalanx",
        "pid": process,
        "tid": int(row["track"]) + 1,
        "ts": (start - began) / 1e3,
        "dur": max((end - start) / 1e3, _SHORTEST_US),
        "args": arguments,
    }


Place = tuple[int, np.void]
"""A record, and the process of the trace that it belongs to."""


def _arrows(tables: Sequence[np.ndarray], began: int) -> Iterator[Event]:
    """Yield an arrow to every exchange of a bucket, from the rank itself and from the one that was ready last."""
    ready, exchanges = (_by_bucket(tables, activity) for activity in (Activity.READY, Activity.EXCHANGE))
    number = 0
    for bucket, folds in exchanges.items():
        senders = ready.get(bucket, [])
        if not senders:
            continue
        last = max(senders, key=lambda place: int(place[1]["start"]))
        for fold in folds:
            own = [each for each in senders if each[0] == fold[0]][-1:]
            for sender in [*own, *([last] if last[0] != fold[0] else [])]:
                number += 1
                yield from _arrow(number, bucket[2], sender, fold, began)


def _by_bucket(tables: Sequence[np.ndarray], activity: Activity) -> dict[tuple[int, int, int], list[Place]]:
    """Return the records of an activity by epoch, step and bucket."""
    found: dict[tuple[int, int, int], list[Place]] = {}
    for process, table in enumerate(tables, 1):
        for row in table[(table["activity"] == activity) & (table["number"] != NOTHING)]:
            key = int(row["epoch"]), int(row["step"]), int(row["number"])
            found.setdefault(key, []).append((process, row))
    return found


def _arrow(number: int, bucket: int, sender: Place, fold: Place, began: int) -> Iterator[Event]:
    left = int(sender[1]["start"])
    arrived = min(max(left, int(fold[1]["start"])), int(fold[1]["end"]))  # somewhere in the exchange
    for phase, at, (process, row) in (("s", left, sender), ("f", arrived, fold)):
        event = {"ph": phase, "id": number, "name": f"bucket {bucket}", "cat": "bucket", "ts": (at - began) / 1e3}
        event |= {"pid": process, "tid": int(row["track"]) + 1}
        yield event | ({"bp": "e"} if phase == "f" else {})
