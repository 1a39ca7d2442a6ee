"""Merging events of torch's own profiler into a trace: on the process of their worker, and on the same clock.

torch writes times of the wall clock. Every worker's records say how far its wall clock is from the coordinator's clock,
so the events of several machines fit together as well as the records do.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import numpy as np

from phalanx.errors import ConfigError
from phalanx.telemetry.record import Activity, WorkerRecords

_FIRST_TRACK = 1000  # behind the tracks of our own records
_FIRST_ARROW = 1 << 40  # numbers of arrows that no record has
_ARROWS = ("s", "t", "f")

Event = dict[str, Any]  # Any: words, numbers, and arguments of both


class _File(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")
    host: str | None = msgspec.field(name="host_name", default=None)
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


_decoder = msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class TorchProfile:
    """What torch's profiler has exported of one process.

    ``name`` is the file, and ``host`` its machine, None if it does not say. Times of events are microseconds, to which
    ``base_ns`` is added to get the time since 1970.
    """

    name: str
    host: str | None
    process: int
    base_ns: int
    events: tuple[Event, ...]

    def find_worker(self, workers: Sequence[WorkerRecords]) -> int:
        """Return the position of the worker that was profiled."""
        for place, each in enumerate(workers):
            host, _, process = each.worker.rpartition(":")
            if int(process) == self.process and self.host in (None, host):
                return place
        who = f"process {self.process}" + (f" of {self.host}" if self.host else "")
        raise ConfigError(f"{self.name} is a profile of {who}, which has no records here: is it of another run?")

    def span_ns(self, worker: WorkerRecords) -> tuple[int, int]:
        """Return when the first event began and the last one ended, by the coordinator's clock."""
        slices = [event for event in self.events if event["ph"] == "X"]
        first = min(event["ts"] for event in slices)
        last = max(event["ts"] + event.get("dur", 0) for event in slices)
        return self._clock_ns(first, worker), self._clock_ns(last, worker)

    def steps(self, worker: WorkerRecords) -> range:
        """Return the steps of the worker that were profiled, also in part; none if there are no such steps."""
        first, last = self.span_ns(worker)
        table = worker.table[worker.table["activity"] == Activity.STEP]
        steps = table["step"][(table["end"] > first) & (table["start"] < last)]
        return range(int(steps.min()), int(steps.max()) + 1) if len(steps) else range(0)

    def merge(self, process: int, worker: WorkerRecords, table: np.ndarray, began: int) -> Iterator[Event]:
        """Yield the events that lie within the records of ``table``, for a trace that starts at ``began``."""
        if not len(table):
            return
        first, last = int(table["start"].min()), int(table["end"].max())
        tracks: dict[tuple[int, int], int] = {}
        arrows: dict[tuple[str, str], int] = {}
        numbers = count(_FIRST_ARROW * process)
        for event in self.events:
            at = self._clock_ns(event["ts"], worker)
            if at > last or at + event.get("dur", 0) * 1000 < first:
                continue
            place = event["pid"], event["tid"]
            if place not in tracks:
                tracks[place] = _FIRST_TRACK + len(tracks)
                yield from self._describe(process, tracks[place], place)
            moved = event | {"pid": process, "tid": tracks[place], "ts": (at - began) / 1e3}
            if event["ph"] in _ARROWS:
                key = event.get("cat", ""), str(event.get("id"))
                moved["id"] = arrows[key] if key in arrows else arrows.setdefault(key, next(numbers))
            yield moved

    def _describe(self, process: int, track: int, place: tuple[int, int]) -> Iterator[Event]:
        where, thread = place
        name = f"torch, thread {thread}" if where == self.process else f"GPU {where}, stream {thread}"
        for what, arguments in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": track})):
            yield {"ph": "M", "name": what, "pid": process, "tid": track, "args": arguments}

    def _clock_ns(self, at_us: float, worker: WorkerRecords) -> int:
        """Return the time of an event by the coordinator's clock."""
        whole = int(at_us)  # or digits would be lost
        return whole * 1000 + round((at_us - whole) * 1000) + self.base_ns - worker.wall_ns


def parse_profile(name: str, content: bytes) -> TorchProfile:
    """Return the profile in a file of this name, as ``torch.profiler.profile.export_chrome_trace`` has written it."""
    try:
        file = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is no profile that torch.profiler has exported: {error}") from error
    events = tuple(event for event in file.events if _is_usable(event))
    processes = Counter(event["pid"] for event in events if event.get("cat") == "cpu_op")
    if not processes:
        raise ConfigError(f"{name} has no operators of torch: was it exported by torch.profiler?")
    return TorchProfile(name, file.host, processes.most_common(1)[0][0], file.base_ns, events)


def _is_usable(event: Event) -> bool:
    """Return whether an event is a slice or an arrow of a thread or a GPU, and not a remark of the profiler."""
    numbers = event.get("ts"), event.get("dur", 0)
    places = event.get("pid"), event.get("tid")
    has_numbers = all(isinstance(each, int | float) for each in numbers) and all(
        isinstance(each, int) for each in places
    )
    return has_numbers and event.get("ph") in ("X", *_ARROWS)
