"""Commands that need torch, on a machine without it."""

import subprocess
import sys

import pytest

PHALANX = "import sys; sys.modules['torch'] = None; from phalanx.cli import main; main()"  # None: it cannot be imported


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["train", "--steps", "30", "--run-dir", "run"],
        ["generate", "run"],
        ["reproduce", "step-00000001"],
        ["checkpoint", "verify", "run"],
        ["checkpoint", "inspect", "run"],
        ["checkpoint", "merge", "run", "--out", "out"],
        ["bench", "step"],
    ],
)
def test_a_command_that_needs_torch_says_so_in_one_line(tmp_path, command):
    ended = subprocess.run(
        [sys.executable, "-c", PHALANX, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    words = "phalanx: this command needs torch: pip install 'phalanx-train[train]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", words)
    assert list(tmp_path.iterdir()) == []
