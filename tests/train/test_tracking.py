"""Copying the log of a run to TensorBoard, wandb, and modules like it."""

import os
import subprocess
import sys
import threading
import types

import pytest
from run_records import make_step
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.errors import ConfigError
from phalanx.train.config import Config
from phalanx.train.config_text import format_config
from phalanx.train.log import StepLog
from phalanx.train.record import Result
from phalanx.train.rundir import RunDir
from phalanx.train.tracking import figures_of, wall_times

RESULT = Result(
    steps=5, loss=1.0, eval_loss=None, digest="d", tokens_per_s=1.0, workers=2, seconds=1.0, unigram_entropy=3.0
)


@pytest.fixture
def run(tmp_path):
    """A run of which three steps are logged."""
    made = RunDir.create(tmp_path / "run", format_config(Config()), {})
    append(made, range(3))
    return made


def append(run, steps):
    with StepLog(run.steps) as log:
        for step in steps:
            log.append(make_step(step, 5.0 / (step + 1), eval_loss=2.0 if step == 2 else None))


@pytest.fixture
def tracker(monkeypatch):
    """A module with wandb's functions that keeps what it is told; trackio and others need a server."""
    module = types.ModuleType("recording_tracker")
    module.told = []
    module.init = lambda **what: module.told.append(("init", what))
    module.log = lambda figures, step: module.told.append(("log", step, figures))
    module.finish = lambda: module.told.append(("finish",))
    monkeypatch.setitem(sys.modules, "recording_tracker", module)
    return module


def call(run, *arguments):
    return CliRunner().invoke(app, ["log", str(run.path), *map(str, arguments)], catch_exceptions=False).output


def read_events(folder):
    """What TensorBoard's own reader finds, by tag: step and value."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={accumulator.SCALARS: 0})
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_the_log_has(run):
    pytest.importorskip("tensorboard")

    assert "tensorboard has the steps up to 2" in call(run)

    found = read_events(run.path / "tensorboard")
    assert found["loss"] == [(0, 5.0), (1, 2.5), (2, pytest.approx(5 / 3))]
    assert found["held-out loss"] == [(2, 2.0)]
    assert found["tokens per second"] == [(step, pytest.approx(10240)) for step in range(3)]


def test_steps_are_not_logged_twice_into_the_same_folder(run):
    pytest.importorskip("tensorboard")
    call(run)

    with pytest.raises(ConfigError, match="remove it, or pass --out"):
        call(run)


def test_a_run_is_followed_to_its_end(run, tracker):
    told = threading.Event()
    tracker.log = lambda figures, step: (tracker.told.append(("log", step, figures)), step == 2 and told.set())
    following = threading.Thread(target=call, args=(run, "--to", "recording_tracker", "--follow"))

    following.start()
    assert told.wait(60)
    append(run, range(3, 5))
    run.write_result(RESULT)
    following.join(60)

    assert [what[1] for what in tracker.told if what[0] == "log"] == list(range(5))


def test_a_tracker_like_wandb_gets_the_config_and_every_step_once(run, tracker):
    call(run, "--to", "recording_tracker", "--project", "mine")

    (kind, begun), *logged, ended = tracker.told
    assert (kind, begun["project"], begun["name"]) == ("init", "mine", "run")
    assert begun["config"]["train"]["steps"] == 300
    assert [(step, figures["loss"]) for _, step, figures in logged] == [(0, 5.0), (1, 2.5), (2, 5 / 3)]
    assert ended == ("finish",)


@pytest.mark.parametrize(("name", "words"), [("no_such_tracker", "there is no tracker"), ("json", "it has no init")])
def test_what_is_no_tracker_is_refused(run, name, words):
    with pytest.raises(ConfigError, match=words):
        call(run, "--to", name)


def test_times_of_steps_end_with_the_last_one():
    steps = [make_step(step, seconds=2.0) for step in range(3)]

    assert wall_times(steps, 100.0) == [96.0, 98.0, 100.0]


def test_only_steps_with_an_evaluation_have_a_held_out_loss():
    assert "held-out loss" not in figures_of(make_step(1))
    assert figures_of(make_step(1, eval_loss=0.5))["held-out loss"] == 0.5


@pytest.mark.slow
def test_wandb_itself_takes_every_step_offline(run, tmp_path):
    pytest.importorskip("wandb")
    variables = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}

    command = [sys.executable, "-m", "phalanx", "log", str(run.path), "--to", "wandb"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr
    assert "wandb has the steps up to 2" in done.stdout
    (file,) = tmp_path.rglob("*.wandb")
    assert b"held-out loss" in file.read_bytes()
