"""What holds on the CPU holds on a GPU: the same tests, in a process that has not used CUDA before they fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_parallel_play import HAS_CUDA

FILES = [str(Path(__file__).with_name(f"test_data_parallel{part}.py")) for part in ("", "_edges", "_uneven")]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_CUDA, reason="there is no GPU")
@pytest.mark.timeout(600)
def test_everything_that_names_a_device_holds_on_cuda():
    command = [sys.executable, "-m", "pytest", "-k", "cuda", *FILES]

    done = subprocess.run(
        command, env=os.environ | {"PHALANX_TEST_DEVICE": "cuda"}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
