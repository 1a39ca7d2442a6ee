"""The files in which workers leave their records."""

import time
from contextlib import closing

import msgspec
import pytest

from phalanx.errors import ConfigError
from phalanx.telemetry import (
    Activity,
    BatchFile,
    RecordBatch,
    RecordCollector,
    Recorder,
    RecordWriter,
    encode_batch,
    read_workers,
)


def recorded(folder, count=3, most_bytes=1 << 20, worker="node:1"):
    recorder = Recorder(64)
    recorder.worker = worker
    file = BatchFile(folder, worker, most_bytes)
    with closing(file), RecordWriter(recorder, file.append) as writer:
        for step in range(count):
            recorder.begin_step(step, 0, 1)
            recorder.record(Activity.STEP, time.monotonic_ns())
            writer.flush(is_last=True)
    return recorder


def steps_of(records):
    return records.table["step"][records.table["activity"] == Activity.STEP].tolist()


def test_what_was_recorded_is_read_again_for_every_worker(tmp_path):
    recorded(tmp_path, worker="a/../b:1")
    recorded(tmp_path, worker="c:2", count=1)

    first, second = read_workers(tmp_path)

    assert (first.worker, steps_of(first)) == ("a/../b:1", [0, 1, 2])
    assert (second.worker, steps_of(second)) == ("c:2", [0])
    assert first.uncertainty_ns is None
    assert abs(first.table["end"][-1] + first.wall_ns - time.time_ns()) < 3600e9


def test_times_are_those_of_the_coordinators_clock(tmp_path):
    recorder = Recorder(64)
    recorder.clock.add(1000, 1_000_000_001_000, 1000)
    now = time.monotonic_ns()
    with closing(BatchFile(tmp_path, "a:1")) as file, RecordWriter(recorder, file.append):
        recorder.record(Activity.STEP, 5)

    (found,) = read_workers(tmp_path)

    steps = found.table[found.table["activity"] == Activity.STEP]
    assert steps["start"].tolist() == [1_000_000_000_005]
    assert steps["end"][0] >= 1_000_000_000_000 + now
    assert found.uncertainty_ns > 0


def test_only_the_latest_records_are_kept_and_the_files_stay_small(tmp_path):
    recorded(tmp_path, count=200, most_bytes=4000)

    (found,) = read_workers(tmp_path)

    assert steps_of(found)[-1] == 199
    assert 5 < len(steps_of(found)) < 60
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000


def test_a_batch_that_was_cut_is_left_out(tmp_path):
    recorded(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])

    (found,) = read_workers(tmp_path)

    assert steps_of(found) == [0, 1]


@pytest.mark.parametrize("place", [0, 9, 40])
def test_a_damaged_file_is_named(tmp_path, place):
    recorded(tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"node-1\.records is damaged"):
        read_workers(tmp_path)


@pytest.mark.parametrize(("tracks", "records"), [((), bytes(32)), (("a",), bytes(31)), (("a",), bytes(31) + b"\x01")])
def test_records_that_make_no_sense_are_refused(tmp_path, tracks, records):
    batch = RecordBatch("x:1", tracks, 0, None, 0, 0, records)
    (tmp_path / "x-1.records").write_bytes(encode_batch(batch))

    with pytest.raises(ConfigError, match="damaged, or of another release"):
        read_workers(tmp_path)


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    (tmp_path / "file").touch()

    recorded(tmp_path / "file" / "telemetry")

    assert "the run continues without it" in caplog.text
    with pytest.raises(ConfigError, match="there is no telemetry"):
        read_workers(tmp_path / "file" / "telemetry")


def test_batches_of_other_machines_are_written_for_each_worker_and_damaged_ones_are_not(tmp_path):
    batch = RecordBatch("far/away:7", ("training",), 0, None, 0, 0, bytes(32))
    with closing(RecordCollector(tmp_path / "telemetry")) as collector:
        assert collector.take(encode_batch(batch))
        assert collector.take(encode_batch(msgspec.structs.replace(batch, worker="other:8")))
        whole = encode_batch(batch)
        for wrong in (b"", whole[:-1], whole[:-1] + b"!", b"PHR1" + whole, whole + whole):
            assert not collector.take(wrong)

    assert [each.worker for each in read_workers(tmp_path / "telemetry")] == ["far/away:7", "other:8"]
    assert [len(each.table) for each in read_workers(tmp_path / "telemetry")] == [1, 1]
