"""``phalanx checkpoint`` on checkpoints that were saved whole and in shards."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from phalanx.cli.checkpoint import app
from phalanx.errors import ConfigError
from phalanx.testing import World
from phalanx.train.checkpoint import Checkpoint, load, save, save_together
from phalanx.train.rundir import RunDir

MODEL = {"weight": torch.arange(6.0).view(2, 3)}
MOMENT = torch.arange(6.0) * 2
STEP = torch.tensor(9.0)


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run", "", {})


def save_whole(run, step):
    state = {"weight.exp_avg": MOMENT.view(2, 3), "weight.step": STEP}
    return save(run.checkpoints, Checkpoint(step, {"model": MODEL, "optimizer": state}, {}))


def save_shards(run, step):
    def work(group):
        part = slice(3 * group.rank, 3 * group.rank + 3)
        shard = {f"weight.exp_avg[{part.start}:{part.stop}]": MOMENT[part], "weight.step": STEP}
        return save_together(run.checkpoints, Checkpoint(step, {"model": MODEL}, {}), shard, group)

    return World(2, lanes=2).run(work)[0]


def call(*arguments):
    """The exit status of ``phalanx checkpoint`` and what it printed."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result.exit_code, result.output


def size_of(path):
    return {file.name: file.stat().st_size for file in path.iterdir()}


class TestInspect:
    def test_the_last_checkpoint_of_a_run_is_described(self, run):
        save_whole(run, 5)
        path = save_shards(run, 7)

        status, out = call("inspect", run.path)

        first, *rows = out.splitlines()
        figures = [row.split() for row in rows if row.strip(" ─")]
        sizes = {name: f"{size:,}" for name, size in size_of(path).items()}
        assert (status, first) == (0, f"{path}: step 7, in the shards of 2 workers")
        assert figures == [
            ["tensors", "elements", "bytes"],
            ["model.safetensors", "1", "6", sizes["model.safetensors"]],
            ["optimizer.0-of-2.safetensors", "2", "4", sizes["optimizer.0-of-2.safetensors"]],
            ["optimizer.1-of-2.safetensors", "2", "4", sizes["optimizer.1-of-2.safetensors"]],
            ["parameters", "1", "6", "24"],
            ["state:", "exp_avg", "1", "6", "24"],
            ["state:", "step", "1", "1", "4"],
        ]

    def test_as_json_is_one_object(self, run):
        path = save_whole(run, 5)

        status, out = call("inspect", path, "--json")

        sizes = size_of(path)
        assert (status, out.count("\n")) == (0, 1)
        assert json.loads(out) == {
            "path": str(path),
            "step": 5,
            "workers": 1,
            "files": {
                "model.safetensors": {"tensors": 1, "elements": 6, "bytes": sizes["model.safetensors"]},
                "optimizer.safetensors": {"tensors": 2, "elements": 7, "bytes": sizes["optimizer.safetensors"]},
            },
            "parameters": {"tensors": 1, "elements": 6, "bytes": 24},
            "state": {
                "exp_avg": {"tensors": 1, "elements": 6, "bytes": 24},
                "step": {"tensors": 1, "elements": 1, "bytes": 4},
            },
        }

    def test_one_without_an_optimizer_has_no_state(self, run):
        path = save(run.halts, Checkpoint(3, {"model": MODEL, "batches": {"0": torch.arange(4)}}, {}))

        _, out = call("inspect", path, "--json")

        assert json.loads(out)["state"] == {}

    def test_a_damaged_one_is_refused(self, run):
        path = save_shards(run, 7)
        (path / "optimizer.1-of-2.safetensors").unlink()

        with pytest.raises(ConfigError, match=r"step-00000007 is damaged: optimizer.1-of-2.safetensors cannot be read"):
            call("inspect", path)


class TestVerify:
    def test_all_checkpoints_of_runs_and_folders_are_read(self, run, tmp_path):
        other = RunDir.create(tmp_path / "other", "", {})
        paths = [save_whole(run, 5), save_shards(run, 7), save_shards(other, 3), save_whole(other, 4)]

        ended = call("verify", run.path, other.checkpoints)

        assert ended == (0, "".join(f"checkpoint {path} is complete\n" for path in paths))

    def test_one_that_is_not_whole_is_described_and_the_status_is_1(self, run):
        paths = [save_whole(run, 5), save_shards(run, 7), save_whole(run, 9)]
        (paths[1] / "optimizer.1-of-2.safetensors").unlink()

        status, out = call("verify", *paths)

        words = "is damaged: optimizer.1-of-2.safetensors cannot be read: No such file or directory"
        assert status == 1
        assert out.splitlines() == [
            f"checkpoint {paths[0]} is complete",
            f"checkpoint {paths[1]} {words}",
            f"checkpoint {paths[2]} is complete",
        ]

    def test_where_no_checkpoint_is_that_is_said(self, run):
        with pytest.raises(ConfigError, match=f"^there is no checkpoint in {run.path}: name one, or a run"):
            call("verify", run.path)


class TestMerge:
    def test_the_merged_checkpoint_is_named_and_has_the_whole_state(self, run, tmp_path):
        save_shards(run, 7)

        ended = call("merge", run.path, "--out", tmp_path / "merged")

        path = tmp_path / "merged" / "step-00000007"
        assert ended == (0, f"{path}\n")
        assert torch.equal(load(path).files["optimizer"]["weight.exp_avg"], MOMENT.view(2, 3))

    def test_without_a_folder_nothing_is_merged(self, run):
        path = save_shards(run, 7)

        status, out = call("merge", path)

        assert status == 2
        assert "--out" in out


@pytest.mark.slow
def test_a_request_that_makes_no_sense_is_one_line_and_status_2(tmp_path):
    program = "from phalanx.cli import main; main()"

    ended = subprocess.run(
        [sys.executable, "-c", program, "checkpoint", "inspect", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"phalanx: there is no checkpoint in {tmp_path}: name one, or a run that has some\n"


def test_the_command_does_not_import_torch_before_it_is_needed():
    program = "import phalanx.cli.checkpoint, sys; print('torch' in sys.modules)"

    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert imported == "False\n"
