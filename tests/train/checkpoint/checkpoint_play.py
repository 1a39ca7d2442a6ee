"""Checkpoints to try things on, and damage."""

import os
import signal
import sys

import numpy as np
import torch

from phalanx.train.checkpoint import Checkpoint

FILES = ["facts.json", "manifest.json", "model.safetensors", "optimizer.safetensors"]


def make(step, size=8):
    values = np.arange(size, dtype=np.float32) + step  # by numpy: torch's threads do not outlive a fork
    weight, moment = torch.from_numpy(values), torch.from_numpy(values * 2)
    return Checkpoint(step, {"model": {"weight": weight}, "optimizer": {"moment": moment}}, {"tokens": step * 10})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_same(found, expected):
    assert (found.step, found.facts) == (expected.step, expected.facts)
    assert found.files.keys() == expected.files.keys()
    for name, tensors in expected.files.items():
        assert found.files[name].keys() == tensors.keys()
        for key, tensor in tensors.items():
            torch.testing.assert_close(found.files[name][key], tensor.detach().cpu(), rtol=0, atol=0, equal_nan=True)


def alter(file):
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")


def truncate(file):
    os.truncate(file, 96)


def remove(file):
    file.unlink()


def kill_at(number):
    """Have the system end this process for good just before the ``number``-th thing that it does to files."""
    left = number

    def count(event, _):
        nonlocal left
        if event in {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
