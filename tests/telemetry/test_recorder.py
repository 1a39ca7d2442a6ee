"""The ring buffers in which a rank records what it does."""

import gc
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from phalanx.telemetry import NOTHING, OFF, RECORD, Activity, Recorder


@pytest.fixture
def recorder():
    made = Recorder(capacity=64)
    yield made
    made.close()


def table_of(recorder):
    batch = recorder.take()
    return np.frombuffer(batch.records, RECORD) if batch else np.empty(0, RECORD)


def of(table, activity):
    return table[table["activity"] == activity]


def test_a_record_says_what_was_done_when_by_which_rank_in_which_step_and_thread(recorder):
    recorder.begin_step(7, 2, 3)
    began = time.monotonic_ns()

    recorder.record(Activity.FORWARD, began, 5)
    ended = time.monotonic_ns()

    batch = recorder.take()
    (found,) = of(np.frombuffer(batch.records, RECORD), Activity.FORWARD)
    assert (found["step"], found["rank"], found["epoch"], found["number"], found["peer"]) == (7, 2, 3, 5, NOTHING)
    assert found["start"] == began <= found["end"] <= ended
    assert batch.tracks[found["track"]] == "training"


def test_what_was_taken_is_not_taken_again(recorder):
    recorder.record(Activity.COMMIT, 0)
    assert len(of(table_of(recorder), Activity.COMMIT)) == 1

    assert len(of(table_of(recorder), Activity.COMMIT)) == 0


def test_the_latest_records_stay_when_there_is_no_room_and_the_others_are_counted(recorder):
    for number in range(100):
        recorder.record(Activity.FORWARD, 0, number)

    batch = recorder.take()

    kept = of(np.frombuffer(batch.records, RECORD), Activity.FORWARD)["number"]
    assert kept.tolist() == list(range(36, 100))
    assert batch.dropped == 36


def test_threads_that_record_at_the_same_time_lose_nothing():
    recorder, all_here = Recorder(capacity=4096), threading.Barrier(3)

    def work():
        all_here.wait(60)
        for number in range(2000):
            recorder.record(Activity.BACKWARD, 0, number)

    threads = [threading.Thread(target=work, name=f"phalanx-worker-{index}") for index in range(3)]
    rows = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rows.append(table_of(recorder))  # beside the writers
    for thread in threads:
        thread.join()
    rows.append(table_of(recorder))
    recorder.close()

    numbers = of(np.concatenate(rows), Activity.BACKWARD)["number"]
    assert np.bincount(numbers).tolist() == [3] * 2000


def test_records_of_a_thread_that_is_about_a_bucket_name_it(recorder):
    recorder.about(4)
    recorder.record_wait(peer=1, start_ns=time.monotonic_ns() - 10**6)
    recorder.about(NOTHING)
    recorder.record(Activity.CALL, 0)

    table = table_of(recorder)
    assert of(table, Activity.WAIT)[["number", "peer"]].tolist() == [(4, 1)]
    assert of(table, Activity.CALL)["number"].tolist() == [NOTHING]


def test_short_waits_are_not_recorded(recorder):
    recorder.record_wait(peer=1, start_ns=time.monotonic_ns())

    assert len(of(table_of(recorder), Activity.WAIT)) == 0


def test_garbage_collection_is_recorded_until_the_recorder_is_closed(recorder):
    garbage = [[] for _ in range(200_000)]
    for one, other in pairwise(garbage):
        one.append(other)

    gc.collect()
    del garbage, one, other
    gc.collect()
    found = of(table_of(recorder), Activity.COLLECT)
    recorder.close()

    assert 2 in found["number"]
    assert (found["end"] > found["start"]).all()
    assert recorder._note_collection not in gc.callbacks


def test_a_recorder_that_is_off_records_nothing():
    OFF.begin_step(1, 1, 1)
    OFF.about(3)
    OFF.record(Activity.STEP, 0)
    OFF.record_wait(1, 0)

    assert OFF.take() is None
    assert OFF._rings == {}
