"""``phalanx trace``, ``phalanx blame`` and ``phalanx metrics`` of a directory."""

import json
import time

import pytest
import typer
from typer.testing import CliRunner

from phalanx.cli.blame import blame
from phalanx.cli.metrics import metrics
from phalanx.cli.trace import trace
from phalanx.errors import ConfigError
from phalanx.telemetry import Activity, recording
from phalanx.train.config import Config
from phalanx.train.config_text import format_config
from phalanx.train.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    """A run of one rank that has taken 20 steps, each with one lane."""
    made = RunDir.create(tmp_path / "run", format_config(Config()), {})
    with recording(made.telemetry) as records:
        for step in range(20):
            began = time.monotonic_ns()
            records.recorder.begin_step(step, 0, 1)
            for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD):
                records.recorder.record(activity, time.monotonic_ns(), 0)
            records.recorder.record(Activity.STEP, began)
    return made


def call(command, *arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False).output


def steps_in(path):
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sorted({event["args"]["step"] for event in events if event["ph"] == "X" and event["name"] == "step"})


def test_a_trace_has_the_last_ten_steps_or_those_that_were_asked_for(run, tmp_path):
    assert "steps 10 to 19 of 1 worker:" in call(trace, run.path)
    call(trace, run.path, "--steps", "3:5", "--out", tmp_path / "some.json")

    assert steps_in(run.path / "trace.json") == list(range(10, 20))
    assert steps_in(tmp_path / "some.json") == [3, 4]


@pytest.mark.parametrize("steps", ["5", "5:5", "7:3", "a:b", "-1:3"])
def test_steps_that_make_no_sense_are_refused(run, steps):
    with pytest.raises(ConfigError, match="as in 100:110"):
        call(trace, run.path, f"--steps={steps}")


def test_a_healthy_run_has_nobody_to_blame_and_a_status(run):
    assert "1 rank, steps 2 to 19" in call(blame, run.path)
    assert json.loads(call(metrics, run.path, "--json"))["ranks"][0]["rank"] == 0
    assert "phalanx_planned_steps 300" in call(metrics, run.path)


def test_a_directory_without_telemetry_is_refused_with_the_reason(tmp_path):
    for command in (blame, trace):
        with pytest.raises(ConfigError, match=r"there is no telemetry in .*telemetry: No such file"):
            call(command, tmp_path)


def test_records_without_a_step_are_refused(tmp_path):
    with recording(tmp_path / "telemetry") as records:
        records.recorder.record(Activity.CALL, time.monotonic_ns())

    with pytest.raises(ConfigError, match="let the run take some steps"):
        call(blame, tmp_path)
