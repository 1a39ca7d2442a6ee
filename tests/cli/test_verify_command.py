import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from phalanx.cli.plot import plot
from phalanx.cli.verify import verify
from phalanx.errors import ConfigError
from phalanx.train.log import StepLog
from phalanx.train.record import StepRecord, float_bits
from phalanx.train.rundir import RunDir


@pytest.fixture
def make_run(tmp_path):
    def make(name, digests):
        run = RunDir.create(tmp_path / name, "", {})
        with StepLog(run.steps) as log:
            for step, digest in enumerate(digests, start=1):
                log.append(make_step(step, digest))
        return run.path

    return make


def make_step(step, digest):
    times = {"compute_s": 0.1, "exchange_s": 0.01, "wait_s": 0.0, "seconds": 0.11}
    figures = {"loss": 2.0, "loss_bits": float_bits(2.0), "norm": 1.0, "lr": 0.1}
    return StepRecord(step=step, digest=digest, tokens=64, workers=2, **figures, **times)


def call(command, *arguments):
    """Call a command of ``phalanx`` by itself: the exit status and what it printed."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result.exit_code, result.output


class TestVerify:
    def test_equal_runs_end_with_status_0(self, make_run):
        ended = call(verify, make_run("a", "xyz"), make_run("b", "xyz"))

        assert ended == (0, "the same for all 3 steps, bit for bit\n")

    def test_runs_that_differ_end_with_status_1_and_the_first_difference(self, make_run):
        ended = call(verify, make_run("a", "xyz"), make_run("b", "xYZ"))

        assert ended == (1, "step 2 differs: digest y and Y. 1 step before it is the same.\n")

    def test_runs_without_steps_are_not_the_same(self, make_run):
        ended = call(verify, make_run("a", ""), make_run("b", ""))

        assert ended == (1, "there is no step that both have: both are empty\n")

    def test_as_json_is_one_object(self, make_run):
        status, out = call(verify, make_run("a", "xyz"), make_run("b", "xY"), "--json")

        assert (status, out.count("\n")) == (1, 1)
        assert json.loads(out) == {
            "is_same": False,
            "equal": 1,
            "step": 2,
            "differences": [{"name": "digest", "first": "y", "second": "Y"}],
            "first_alone": 1,
            "second_alone": 0,
        }

    def test_what_is_no_run_is_named(self, make_run, tmp_path):
        with pytest.raises(ConfigError, match=f"^there is no run in {tmp_path}/none: name a directory"):
            call(verify, make_run("a", "xyz"), tmp_path / "none")


class TestPlot:
    @pytest.mark.parametrize("options", [[], ["--out", "other.png"]])
    def test_a_picture_is_written_and_named(self, make_run, monkeypatch, tmp_path, options):
        monkeypatch.chdir(tmp_path)
        run = make_run("a", "xyz")
        expected = options[1] if options else f"{run}/plot.png"

        ended = call(plot, run, *options)

        assert ended == (0, f"{expected}\n")
        assert (tmp_path / expected).read_bytes().startswith(b"\x89PNG")

    def test_a_run_without_steps_is_named(self, make_run):
        with pytest.raises(ConfigError, match=r"^there is nothing to draw: a has no steps yet$"):
            call(plot, make_run("a", ""))


def test_neither_command_imports_torch_or_matplotlib_before_it_is_needed():
    program = "import phalanx.cli.verify, phalanx.cli.plot, sys; print({'torch', 'matplotlib'} & sys.modules.keys())"

    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert imported == "set()\n"
