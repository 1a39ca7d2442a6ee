"""Running ranks in processes of their own, since torch has one random state a process."""

import os

import torch

from phalanx.testing import World

DEVICE = os.environ.get("PHALANX_TEST_DEVICE", "cpu")

# torch imports much when the first optimizer is made: once here, not in every process that is forked.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])


def spread(size, work, over="arena", *, lanes=8, hosts=None):
    """What ``work(group)`` returned, by rank; tuples come back as lists."""
    torch.set_num_threads(1)
    return World(size, over, lanes=lanes, hosts=hosts, processes=True).run(work)


def of_all(results):
    """What all ranks returned, which must be the same."""
    assert results == [results[0]] * len(results)
    return results[0]
