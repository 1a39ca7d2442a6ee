import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from phalanx.cli.explain import explain
from phalanx.coordinator import EventLog
from phalanx.coordinator.events import CoordinatorStarted, EpochBegan, RunEnded, Seat
from phalanx.errors import ConfigError
from phalanx.train.config import Config
from phalanx.train.config_text import format_config
from phalanx.train.log import StepLog
from phalanx.train.record import Result, StepRecord, float_bits
from phalanx.train.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    """A run of 200 steps as ``phalanx train`` prepares it."""
    return RunDir.create(tmp_path / "run", format_config(Config()), {})


def write_events(run):
    with EventLog(run.events) as log:
        log.write(
            [
                CoordinatorStarted(is_restart=False, step=0),
                EpochBegan(epoch=1, step=0, members=(Seat(0, 7, "anvil", 8, is_new=False),)),
                RunEnded(step=3, words="all workers left it at step 3", has_halted=False),
            ]
        )


def write_steps(run, count):
    times = {"compute_s": 0.1, "exchange_s": 0.01, "wait_s": 0.0, "seconds": 0.11}
    figures = {"loss": 2.0, "loss_bits": float_bits(2.0), "norm": 1.0, "lr": 0.1, "digest": "d", "tokens": 64}
    with StepLog(run.steps) as log:
        for step in range(count):
            log.append(StepRecord(step=step, workers=2, **figures, **times))


def write_result(run, steps):
    figures = {"loss": 2.0, "eval_loss": 2.5, "tokens_per_s": 1.0, "seconds": 1.0, "unigram_entropy": 3.0}
    run.write_result(Result(steps=steps, digest="0123456789abcdef01", workers=2, **figures))


def call(*arguments):
    """The exit status and what was printed."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(explain)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_run_is_told_from_all_its_files(run):
    write_events(run)
    write_steps(run, 3)
    write_result(run, 3)
    (run.checkpoints / "step-00000003").mkdir(parents=True)
    (run.checkpoints / "step-00000004.new").mkdir()

    status, out = call(run.path)

    assert status == 0
    assert "0:00:00.0  The run began at step 0 with 1 worker on anvil.\n" in out
    assert f"The run was stopped after 3 of {Config().train.steps} steps. The loss on held-out text is 2.500.\n" in out
    assert f"Steps: 3 of {Config().train.steps}, 3 with 2 workers.\n" in out
    assert out.endswith("Checkpoints were saved after these numbers of steps: 3; still there: 3.\n")


def test_an_older_run_is_told_without_events(run):
    write_steps(run, 3)

    status, out = call(run.path)

    assert status == 0
    assert out.startswith(f"The run in {run.path} has no events: nobody wrote them down.")


def test_a_directory_with_nothing_but_events_is_enough(tmp_path):
    write_events(RunDir(tmp_path))

    status, out = call(tmp_path)

    assert status == 0
    assert "The run ended: all workers left it at step 3.\n\nSteps: 3.\n" in out


def test_as_json_is_one_object(run):
    write_events(run)

    status, out = call(run.path, "--json", "--all")

    assert (status, out.count("\n")) == (0, 1)
    story = json.loads(out)
    assert (story["steps"], story["losses"], story["recoveries_s"], story["coordinator_restarts"]) == (3, 0, [], 0)
    assert (
        [each["words"] for each in story["told"]][-1]
        == story["end"]
        == ("The run ended: all workers left it at step 3.")
    )


def test_what_is_no_run_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=f"^there is no run in {path}: name a directory"):
            call(path)


@pytest.mark.parametrize("name", ["events", "steps", "result", "config"])
def test_a_damaged_file_is_named(run, name):
    write_events(run)
    path = getattr(run, name)
    path.write_bytes(b"nonsense\n" * 3)

    with pytest.raises(ConfigError, match=str(path)):
        call(run.path)


def test_a_last_event_that_was_cut_is_left_out(run):
    write_events(run)
    run.events.write_bytes(run.events.read_bytes()[:-20])

    assert "Nothing says how the run ended" in call(run.path)[1]


def test_the_command_does_not_import_torch():
    program = "import phalanx.cli.explain, sys; print({'torch', 'matplotlib'} & sys.modules.keys())"

    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert imported == "set()\n"
