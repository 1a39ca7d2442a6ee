"""The trace of a run, in Chrome's format."""

from collections import Counter

import msgspec
from record_play import run

from phalanx.telemetry import Activity, trace_events, write_trace

ALL = range(100)


def events_of(workers, steps=ALL):
    """Return the events by phase, and check what the format demands of every one of them."""
    found = {}
    for event in msgspec.json.decode(write_trace(workers, steps))["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
        found.setdefault(event["ph"], []).append(event)
    return found


def test_every_record_is_a_slice_on_the_track_of_its_rank_and_thread():
    workers = run(3, steps=4, slow={1: {Activity.BACKWARD: 7}})

    found = events_of(workers)

    names = Counter(event["name"].partition(" ")[0] for event in found["X"])
    assert names["exchange"] == names["ready"] == names["step"] == 3 * 4
    assert len(found["X"]) == sum(len(each.table) for each in workers)
    tracks = {(each["pid"], each["tid"]): each["args"]["name"] for each in found["M"] if each["name"] == "thread_name"}
    assert sorted(tracks.values()) == ["exchange"] * 3 + ["training"] * 3
    assert {(each["pid"], each["tid"]) for each in found["X"]} == tracks.keys()
    assert {each["args"]["name"] for each in found["M"] if each["name"] == "process_name"} == {
        f"rank {rank} (node{rank}:{100 + rank})" for rank in range(3)
    }


def test_slices_of_a_track_lie_within_each_other_or_apart():
    found = events_of(run(2, steps=3))["X"]

    for place in {(each["pid"], each["tid"]) for each in found}:
        open_ends = []
        here = [each for each in found if (each["pid"], each["tid"]) == place]
        for each in sorted(here, key=lambda each: (each["ts"], -each["dur"])):
            end = each["ts"] + each["dur"]
            while open_ends and open_ends[-1] <= each["ts"] + 0.01:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.01
            open_ends.append(end)


def test_arrows_lead_from_a_bucket_that_leaves_to_its_exchange_on_all_ranks():
    found = events_of(run(3, steps=1, slow={1: {Activity.BACKWARD: 7}}))
    processes = {each["pid"]: each["args"]["name"][5] for each in found["M"] if each["name"] == "process_name"}

    ends = {each["id"]: each for each in found["f"]}
    arrows = {(processes[each["pid"]], processes[ends[each["id"]]["pid"]]) for each in found["s"]}

    assert arrows == {("0", "0"), ("1", "1"), ("2", "2"), ("1", "0"), ("1", "2")}  # rank 1 is the last to be ready
    for start in found["s"]:
        end = ends[start["id"]]
        assert start["ts"] <= end["ts"]
        assert any(_is_within(start, each) and each["name"] == "ready bucket 0" for each in found["X"])
        assert any(_is_within(end, each) and each["name"] == "exchange bucket 0" for each in found["X"])


def test_only_the_steps_that_were_asked_for_are_there():
    found = list(trace_events(run(2, steps=9), range(3, 5)))

    assert {each["args"]["step"] for each in found if each["ph"] == "X"} == {3, 4}


def _is_within(event, found):
    same = (event["pid"], event["tid"]) == (found["pid"], found["tid"])
    return same and found["ts"] <= event["ts"] <= found["ts"] + found["dur"]
