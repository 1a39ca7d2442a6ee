from contextlib import closing

import numpy as np

from phalanx.telemetry import NOTHING, RECORD, Activity, BatchFile, RecordBatch, RecordTail, encode_batch, read_between
from phalanx.telemetry.record_tail import find_files, read_start

WALL_NS = 10**18


def batch(step):
    table = np.zeros(50, RECORD)
    table["start"], table["end"], table["step"] = step * 1000 + np.arange(50), step * 1000 + 1000, step
    table["rank"], table["peer"], table["activity"] = 0, NOTHING, Activity.FORWARD
    return RecordBatch("node:1", ("training",), 0, None, WALL_NS, 0, table.tobytes())


def steps(batches):
    return [int(each.table()["step"][0]) for each in batches]


def write(folder, numbers):
    with closing(BatchFile(folder, "node:1")) as file:
        for number in numbers:
            file.append(encode_batch(batch(number)))
    return folder / "node-1.records"


def test_each_look_returns_what_is_new(tmp_path):
    path = write(tmp_path, range(3))
    tail = RecordTail(path)

    first, nothing = tail.read(), tail.read()
    write(tmp_path, range(3, 5))

    assert (steps(first), nothing, steps(tail.read())) == ([0, 1, 2], [], [3, 4])


def test_a_batch_that_is_being_written_is_returned_when_it_is_whole(tmp_path):
    path = write(tmp_path, [0])
    whole = path.read_bytes() + encode_batch(batch(1))
    path.write_bytes(whole[:-5])
    tail = RecordTail(path)

    first = tail.read()
    with path.open("ab") as file:
        file.write(whole[-5:])

    assert (steps(first), steps(tail.read())) == ([0], [1])


def test_of_a_long_file_the_first_look_reads_the_end(tmp_path):
    path = write(tmp_path, range(500))

    assert steps(RecordTail(path, most_bytes=5000).read()) == [497, 498, 499]


def test_a_file_that_was_replaced_is_read_from_its_beginning(tmp_path):
    path = write(tmp_path, range(3))
    tail = RecordTail(path)
    tail.read()

    path.rename(tmp_path / "older")
    write(tmp_path, [7])

    assert steps(tail.read()) == [7]


def test_the_records_between_two_times_are_found_in_a_long_file(tmp_path):
    path = write(tmp_path, range(2000))

    found = steps(read_between(path, WALL_NS + 900_000, WALL_NS + 910_000, most_bytes=1 << 20))

    assert set(range(900, 911)) <= set(found)
    assert len(found) < 250


def test_of_too_many_records_some_are_read_evenly_spread(tmp_path):
    path = write(tmp_path, range(2000))

    found = steps(read_between(path, WALL_NS, WALL_NS + 2_000_000, most_bytes=1 << 18))

    assert len(found) < 200
    assert max(np.diff(found)) < 100


def test_damage_is_passed_over(tmp_path):
    path = write(tmp_path, range(3))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)

    assert steps(RecordTail(path).read()) == [0, 2]
    assert read_start(path) == WALL_NS


def test_where_there_is_no_file_there_are_no_records(tmp_path):
    assert find_files(tmp_path / "none") == []
    assert RecordTail(tmp_path / "none").read() == []
    assert read_between(tmp_path / "none", 0, 1, 1000) == []
    assert read_start(tmp_path / "none") is None
