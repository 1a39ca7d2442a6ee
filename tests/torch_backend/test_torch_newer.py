"""What only torch 2.14 and newer has. ``scripts/torch-newer`` runs all tests of this folder with such a torch."""

import subprocess
import sys

import newer_checks
import pytest
import torch
import torch_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="scripts/torch-newer has a newer torch"
    ),
]

ALONE = """
import sys, torch
from torch import distributed
distributed.init_process_group("phalanx", store=distributed.HashStore(), rank=0, world_size=1)
distributed.all_reduce(torch.ones(1))
print(distributed.get_backend(), type(distributed.group.WORLD._get_backend(torch.device("cpu"))).__name__)
distributed.destroy_process_group()
"""


def test_torch_finds_the_backend_without_an_import():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=150, check=False)

    assert "phalanx PhalanxBackend" in done.stdout, done.stderr


def test_a_backend_has_calls_that_a_process_group_of_older_torch_lacks():
    assert torch_ranks.run(newer_checks.calls_of_a_backend) == [([0, 0, 1, 1], [0, 1])] * 2


def test_memberships_follow_one_another(tmp_path):
    first, second, third = torch_ranks.run(newer_checks.memberships, str(tmp_path), size=3, backend=None)

    for found in (first, second, third):
        assert "call reconfigure first" in found[0]
        assert "already used" in found[-1]
    assert first[1:-1] == third[1:-1] == [3, 2, 3]
    assert second[1:-1] == [3, 3]
