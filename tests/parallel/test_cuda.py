"""What holds on the CPU holds on a GPU: the same tests, in a process that has not used CUDA before they fork."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_parallel_play import HAS_CUDA

from phalanx.parallel.reduction import as_tensor, pin

HERE = Path(__file__).parent
DATA_PARALLEL = [f"test_data_parallel{part}.py" for part in ("", "_edges", "_uneven")]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_CUDA, reason="there is no GPU")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (DATA_PARALLEL, "cuda"),
        (["test_engine.py"], "workers"),
        (["test_zero.py"], "tcp or 3-arena or hosts"),
        (["test_gpu_meeting.py"], ""),
    ],
    ids=["data-parallel", "engine", "zero", "meeting"],
)
def test_everything_that_names_a_device_holds_on_cuda(files, chosen):
    command = [sys.executable, "-m", "pytest", "-m", "", "-k", chosen, *(str(HERE / each) for each in files)]

    done = subprocess.run(
        command, env=os.environ | {"PHALANX_TEST_DEVICE": "cuda"}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_memory_that_the_gpu_still_copies_from_is_not_freed():
    device = torch.device("cuda", torch.cuda.current_device())
    array = np.ones(1 << 20, np.float32)
    pin(array, device)
    mirror = as_tensor(array, torch.float32)
    target = torch.zeros(len(array), device=device)

    torch.cuda._sleep(1 << 30)
    target.copy_(mirror, non_blocking=True)
    is_running = not torch.cuda.current_stream(device).query()
    del array, mirror

    assert is_running
    assert torch.cuda.current_stream(device).query()
