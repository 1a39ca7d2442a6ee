"""A small model, its batches and a world to train it in, on every device there is."""

import copy
import os

import numpy as np
import pytest

from phalanx.testing import World

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

DEVICES = [os.environ.get("PHALANX_TEST_DEVICE", "cpu")]
HAS_CUDA = bool(torch.cuda.device_count())
needs_fork = pytest.mark.skipif(HAS_CUDA, reason="where there is CUDA, torch cannot fork after a backward")

INPUTS = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))


class Net(torch.nn.Module):
    """Two layers, with a buffer that counts and a weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.again = torch.nn.Linear(8, 8, bias=False)
        self.last = torch.nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, inputs):
        return self.last(torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.first(inputs)))))))


NET = Net()


def make_net(device="cpu", dtype=torch.float32):
    """The same net, however many threads ask for it."""
    return copy.deepcopy(NET).to(device, dtype)


def loss_of(model, rows, device="cpu", dtype=torch.float32):
    """The mean squared error over some rows of the batch."""
    return (model(INPUTS[rows].to(device, dtype)) - TARGETS[rows].to(device, dtype)).float().square().mean()


def content(tensors):
    """The bytes of tensors of any type."""
    return b"".join(each.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for each in tensors)


def gradients_of(model):
    """All gradients in a row, widened, zeros for those that are None."""
    found = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
    return np.concatenate([each.detach().cpu().double().reshape(-1).numpy() for each in found])


def make_world(size, over="arena", device="cpu", **options):
    """Ranks in threads; in processes where they use CUDA, whose backward has one thread for all ranks of a process."""
    return World(size, over, processes=device == "cuda", **options)


def whole_batch_gradients(passes=1, device="cpu"):
    """What one rank gets for the whole batch; on the side, since a process that forks must not have used CUDA."""

    def work(_):
        alone = make_net()
        for _ in range(passes):
            loss_of(alone, slice(None)).backward()
        return gradients_of(alone)

    return make_world(1, device=device).run(work)[0]


def ones(*shape, device="cpu"):
    return torch.nn.Parameter(torch.ones(*shape, device=device))
