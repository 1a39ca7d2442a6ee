"""Profiles of torch in a trace: whose they are, and when their events were."""

import contextlib
import json
import os
import socket
import time

import msgspec
import pytest
import torch

from phalanx.errors import ConfigError
from phalanx.telemetry import Activity, parse_profile, read_workers, recording, write_trace


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The records of three steps of this process, and torch's own profile of the second one as bytes."""
    folder = tmp_path_factory.mktemp("profiled")
    matrix = torch.ones(64, 64)
    with recording(folder / "telemetry") as records:
        for step in range(3):
            records.recorder.begin_step(step, 0, 1)
            with torch.profiler.profile() if step == 1 else contextlib.nullcontext() as profile:
                began = time.monotonic_ns()
                torch.mm(matrix, matrix)
                records.recorder.record(Activity.FORWARD, began, 0)
                records.recorder.record(Activity.STEP, began)
            if profile:
                profile.export_chrome_trace(str(folder / "profile.json"))
    return read_workers(folder / "telemetry"), (folder / "profile.json").read_bytes()


def trace_of(workers, content, steps):
    trace = write_trace(workers, steps, [parse_profile("p.json", content)])
    return msgspec.json.decode(trace)["traceEvents"]


def test_an_operator_lies_within_what_the_rank_recorded_of_it(profiled):
    events = trace_of(*profiled, range(3))

    (forward,) = [each for each in events if each["name"] == "forward lane 0" and each["args"]["step"] == 1]
    (operator,) = [each for each in events if each["name"] == "aten::mm"]
    assert operator["pid"] == forward["pid"]
    assert operator["tid"] != forward["tid"]
    slack_us = 1000  # two clocks are read one after the other
    assert forward["ts"] - slack_us <= operator["ts"]
    assert operator["ts"] + operator["dur"] <= forward["ts"] + forward["dur"] + slack_us


def test_the_track_of_an_operator_has_a_name(profiled):
    events = trace_of(*profiled, range(3))

    (operator,) = [each for each in events if each["name"] == "aten::mm"]
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert names[operator["tid"]].startswith("torch, thread ")


def test_a_profile_knows_its_steps(profiled):
    workers, content = profiled

    assert parse_profile("p.json", content).steps(workers[0]) == range(1, 2)


def test_events_of_other_steps_are_left_out(profiled):
    assert not [each for each in trace_of(*profiled, range(2, 3)) if each["name"] == "aten::mm"]


def test_work_of_a_gpu_and_arrows_to_it_stay_apart_from_our_own(profiled):
    workers, content = profiled
    file = json.loads(content)
    mm = next(each for each in file["traceEvents"] if each["name"] == "aten::mm")
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": mm["ts"], "dur": 1.5}
    arrow = [mm | {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": 1} for phase in "sf"]
    file["traceEvents"] += [kernel, *arrow]

    events = trace_of(workers, json.dumps(file).encode(), range(3))

    (found,) = [each for each in events if each["name"] == "gemm"]
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert names[found["pid"], found["tid"]] == "GPU 0, stream 7"
    (number,) = {each["id"] for each in events if each["name"] == "ac2g"}
    assert number > 2**32


@pytest.mark.parametrize("change", [{"host_name": "elsewhere"}, {"host_name": None}])
def test_a_profile_belongs_to_the_process_that_its_host_and_number_say(profiled, change):
    workers, content = profiled
    profile = parse_profile("p.json", json.dumps(json.loads(content) | change).encode())

    assert profile.process == os.getpid()
    if profile.host is None:
        assert profile.find_worker(workers) == 0
    else:
        assert socket.gethostname() != "elsewhere"
        with pytest.raises(ConfigError, match=r"profile of process \d+ of elsewhere, which has no records here"):
            profile.find_worker(workers)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"traceEvents": [3]}', b'{"traceEvents": []}', b"\xff"])
def test_what_is_no_profile_is_refused(content):
    with pytest.raises(ConfigError, match=r"p\.json (is no profile|has no operators)"):
        parse_profile("p.json", content)
