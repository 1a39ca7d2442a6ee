"""What every rank did when, as facts: recorded in memory, written in batches, and read by all that show a run."""

from phalanx.telemetry.blame import Blame, BlameReport, Waste, find_blame, judge, write_report
from phalanx.telemetry.clock import ClockEstimate, Offset
from phalanx.telemetry.record import NOTHING, RECORD, Activity, RecordBatch, WorkerRecords, join_batches
from phalanx.telemetry.record_file import (
    BatchFile,
    RecordCollector,
    RecordWriter,
    encode_batch,
    read_workers,
    recording,
)
from phalanx.telemetry.record_tail import RecordTail, find_files, is_older, read_between, read_start
from phalanx.telemetry.recorder import OFF, Recorder
from phalanx.telemetry.step_times import StepTimes, add_up
from phalanx.telemetry.torch_profile import TorchProfile, parse_profile
from phalanx.telemetry.trace import trace_events, write_trace

__all__ = [
    "NOTHING",
    "OFF",
    "RECORD",
    "Activity",
    "BatchFile",
    "Blame",
    "BlameReport",
    "ClockEstimate",
    "Offset",
    "RecordBatch",
    "RecordCollector",
    "RecordTail",
    "RecordWriter",
    "Recorder",
    "StepTimes",
    "TorchProfile",
    "Waste",
    "WorkerRecords",
    "add_up",
    "encode_batch",
    "find_blame",
    "find_files",
    "is_older",
    "join_batches",
    "judge",
    "parse_profile",
    "read_between",
    "read_start",
    "read_workers",
    "recording",
    "trace_events",
    "write_report",
    "write_trace",
]
