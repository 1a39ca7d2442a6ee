import numpy as np

from phalanx.dashboard.strips import StripSheet
from phalanx.telemetry import NOTHING, RECORD, Activity, RecordBatch


def record(activity, start, end, *, rank=0, peer=NOTHING, track=0):
    return start, end, 0, 1, NOTHING, rank, peer, activity, track


def batch(*records, wall_ns=0):
    table = np.array(list(records), RECORD)
    return RecordBatch("node:1", ("training", "exchange"), 0, None, wall_ns, 0, table.tobytes())


def test_a_cell_shows_what_took_most_of_it():
    sheet = StripSheet(1000, 10, cells=4)

    sheet.add([batch(record(Activity.FORWARD, 0, 8), record(Activity.EXPOSED, 8, 25), wall_ns=1000)])

    assert sheet.read().rows == {0: "cxx."}


def test_time_in_which_a_peer_is_awaited_is_waiting_and_names_the_peer():
    sheet = StripSheet(0, 10, cells=2)

    sheet.add(
        [
            batch(
                record(Activity.EXPOSED, 0, 20, rank=2),
                record(Activity.WAIT, 0, 10, rank=2, peer=1, track=1),
                wall_ns=0,
            )
        ]
    )

    assert sheet.read().rows == {2: "wx"}
    assert [wait[:2] for wait in sheet.read().waits] == [(2, 1)]


def test_waiting_that_backward_hides_is_computing():
    sheet = StripSheet(0, 10, cells=1)

    sheet.add([batch(record(Activity.BACKWARD, 0, 10), record(Activity.WAIT, 0, 10, peer=1, track=1), wall_ns=0)])

    assert sheet.read().rows == {0: "c"}


def test_a_short_recovery_is_not_lost_in_a_long_cell():
    sheet = StripSheet(0, 1000, cells=1)

    sheet.add([batch(record(Activity.FORWARD, 0, 900), record(Activity.RECOVERY, 900, 910), wall_ns=0)])

    assert sheet.read().rows == {0: "r"}


def test_strips_scroll_as_time_goes_on():
    sheet = StripSheet(0, 10, cells=3)
    sheet.add([batch(record(Activity.FORWARD, 0, 10), record(Activity.EXPOSED, 10, 30), wall_ns=0)])

    sheet.scroll_to(30)

    assert sheet.read().rows == {0: "xx."}
    sheet.scroll_to(1_000_000)
    assert sheet.read().rows == {}


def test_a_batch_in_two_halves_adds_up_to_the_whole():
    whole, halves = StripSheet(0, 10, cells=8), StripSheet(0, 10, cells=8)
    records = [record(Activity.FORWARD, 7 * place, 7 * place + 5) for place in range(10)]

    whole.add([batch(*records)])
    halves.add([batch(*records[:4])])
    halves.add([batch(*records[4:])])

    assert whole.read() == halves.read()
    assert whole.read().shares == {0: {"c": 1.0, "x": 0.0, "w": 0.0, "s": 0.0, "r": 0.0}}


def test_two_ranks_are_added_up_apart():
    sheet = StripSheet(0, 10, cells=3)

    sheet.add([batch(record(Activity.FORWARD, 0, 30, rank=5)), batch(record(Activity.EXPOSED, 10, 40, rank=7))])

    assert sheet.read().rows == {5: "ccc", 7: ".xx"}
