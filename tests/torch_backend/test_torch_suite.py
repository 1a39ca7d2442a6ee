"""A selection of PyTorch's own tests, on our backend. ``scripts/torch-suite`` runs all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "scripts" / "torch_suite.py"
WORDS = ("all_reduce_sum", "all_gather_object", "send_recv_any", "all_to_all_single_unequal_split_group", "ddp_sync_bn")


@pytest.mark.slow
@pytest.mark.serial
def test_tests_of_pytorch_pass_on_our_backend():
    done = subprocess.run(
        [sys.executable, str(SUITE), *WORDS], capture_output=True, text=True, timeout=230, check=False
    )

    assert done.returncode == 0, done.stdout
    assert ", 0 failed" in done.stdout
    assert not done.stdout.startswith("phalanx  0 passed")
