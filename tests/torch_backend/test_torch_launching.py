"""How a script gets its group, whatever has started it."""

import subprocess
import sys

import pytest

PHALANX = (sys.executable, "-c", "from phalanx.cli import main; main()")
INIT = """
import torch
from torch import distributed
import phalanx.torch

phalanx.torch.init()
tensor = torch.ones(2)
distributed.all_reduce(tensor)
print("found", distributed.get_backend(), distributed.get_world_size(), tensor[0].item())
distributed.destroy_process_group()
"""


def run(tmp_path, script, *command):
    path = tmp_path / "script.py"
    path.write_text(script)
    return subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.slow
def test_alone_a_script_is_a_group_of_one(tmp_path):
    done = run(tmp_path, INIT, sys.executable)

    assert "found phalanx 1 1.0" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [(*PHALANX, "run", "-n", "2"), (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")]
)
def test_every_launcher_will_do(tmp_path, launcher):
    done = run(tmp_path, INIT, *launcher)

    assert done.stdout.count(" phalanx 2 2.0") == 2, done.stderr  # lines of two ranks may be mixed


@pytest.mark.slow
def test_the_error_without_a_launcher_says_how_to_start(tmp_path):
    done = run(
        tmp_path,
        "import phalanx.torch, torch\ntorch.distributed.init_process_group('phalanx')",
        sys.executable,
    )

    assert done.returncode
    assert "environment variable RANK expected" in done.stderr
    assert "start the script with `phalanx run -n 2 script.py`" in done.stderr
