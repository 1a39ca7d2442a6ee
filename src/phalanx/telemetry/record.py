"""The one definition of a telemetry record: what a rank did, in which thread, and when.

Everything that people see of a run's time is made of these records: traces, blame, metrics and the page.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec
import numpy as np

NOTHING = 0xFFFF
"""In ``number``, ``peer`` or ``rank``: the record has none."""

SHORTEST_NS = 50_000
"""A wait or a garbage collection that is shorter than this is not recorded: there are too many of them."""


class Activity(IntEnum):
    """What a rank did. The comment behind each one says what ``number`` is."""

    STEP = 1  # -; a whole step, from its first lane to its update
    DATA = 2  # lane; its batches are loaded
    FORWARD = 3  # lane
    BACKWARD = 4  # lane
    READY = 5  # bucket; an instant: the last lane has filled it, and it leaves
    EXCHANGE = 6  # bucket; its pieces are sent, received and folded, in the thread of the exchange
    CALL = 7  # -; any other collective
    WAIT = 8  # bucket, if any; nothing could be done before something came from ``peer``
    EXPOSED = 9  # -; the training thread waits for exchanges that backward did not hide
    COMMIT = 10  # -; the coordinator is asked whether the step counts
    OPTIMIZER = 11  # -
    WEIGHTS = 12  # -; with ZeRO, the updated weights come from their owners
    EVALUATE = 13  # -
    CHECKPOINT = 14  # -; in the training thread, or in the thread that writes one beside training
    RECOVERY = 15  # -; from the end of an epoch until this rank has entered the next one
    COLLECT = 16  # generation; Python collects garbage, and no thread of the rank runs Python code


RECORD = np.dtype(
    [
        ("start", "<i8"),  # nanoseconds of the monotonic clock of the machine
        ("end", "<i8"),
        ("step", "<u4"),
        ("epoch", "<u4"),
        ("number", "<u2"),
        ("rank", "<u2"),
        ("peer", "<u2"),
        ("activity", "u1"),
        ("track", "u1"),  # which thread: a position in the names of a batch
    ]
)
PACKING = struct.Struct("<qqIIHHHBB")
assert PACKING.size == RECORD.itemsize, "both describe the same 32 bytes"


class RecordBatch(msgspec.Struct, frozen=True, array_like=True):
    """Some consecutive records of one worker, as they are written and sent.

    ``worker`` is the host and the process, as in "node1:4711", and ``tracks`` are the names of its threads. Adding
    ``offset_ns`` to a time gives the time of the coordinator's clock, to within ``uncertainty_ns``; that is None if
    nobody has measured it. Adding ``wall_ns`` as well gives the time since 1970. ``dropped`` is how many records
    before these were overwritten before anybody took them.
    """

    worker: str
    tracks: tuple[str, ...]
    offset_ns: int
    uncertainty_ns: int | None
    wall_ns: int
    dropped: int
    records: bytes

    @property
    def end_ns(self) -> int:
        """The end of the last record in nanoseconds since 1970."""
        return int(np.frombuffer(self.records, RECORD)["end"].max(initial=0)) + self.offset_ns + self.wall_ns

    def table(self) -> np.ndarray:
        """Return the records as a table, with times of the coordinator's clock."""
        table = np.frombuffer(self.records, RECORD).copy()
        table["start"] += self.offset_ns
        table["end"] += self.offset_ns
        return table


@dataclass(frozen=True, slots=True)
class WorkerRecords:
    """All records of one worker, in order of their start, with times of the coordinator's clock.

    ``tracks`` are the names of its threads. ``uncertainty_ns`` is by how much the times may be off, None if nobody has
    measured it, and ``dropped`` how many records are missing. ``wall_ns`` is as in ``RecordBatch``.
    """

    worker: str
    tracks: tuple[str, ...]
    table: np.ndarray
    uncertainty_ns: int | None
    wall_ns: int
    dropped: int


def join_batches(worker: str, batches: Sequence[RecordBatch]) -> WorkerRecords:
    """Return all records of one worker."""
    table = np.concatenate([batch.table() for batch in batches])
    table = table[np.argsort(table["start"], kind="stable")]
    measured = [batch.uncertainty_ns for batch in batches if batch.uncertainty_ns is not None]
    return WorkerRecords(
        worker,
        max((batch.tracks for batch in batches), key=len),
        table,
        max(measured) if len(measured) == len(batches) else None,
        batches[-1].wall_ns,
        sum(batch.dropped for batch in batches),
    )
