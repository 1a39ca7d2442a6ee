import pytest
import torch
import torch_checks
from torch_ranks import run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_tensors_of_a_gpu_are_exchanged_and_trained():
    (first, weights), (second, others) = run(torch_checks.on_a_gpu)

    assert first == second == [3.0, 3.0, 3.0, 3.0, 12.0, 12.0, 12.0, 0.0, 1.0]
    assert weights == others
