"""Moving tensors between members: all of it arrives, whatever its types, lengths and directions."""

import numpy as np
import pytest
import torch

from phalanx.parallel.engine import transfer
from phalanx.parallel.engine.transfer import TensorBytes, copy_to_newcomers, hand_over
from phalanx.testing import World


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(transfer, "_CHUNK_BYTES", 64)


def make(rank):
    """Tensors of several types, some longer than many chunks and one without elements, that tell who made them."""
    return [
        torch.arange(300, dtype=torch.float32) + rank,
        torch.zeros(0),
        torch.full((3, 5), rank, dtype=torch.int64),
        torch.tensor(rank + 0.5),
        (torch.arange(60.0).reshape(3, 20) + rank).t(),  # not contiguous, so it cannot arrive in place
    ]


def blank():
    return [torch.empty_like(each) for each in make(0)]


def are_equal(found, expected):
    return all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_newcomers_get_everything_from_all_holders_together(over):
    def work(group):
        tensors = make(7) if group.rank in (1, 3) else blank()
        copy_to_newcomers(group, (1, 3), (0, 2), tensors)
        return are_equal(tensors, make(7)), group.statistics().calls["send"]

    results = World(4, over).run(work)

    assert [is_equal for is_equal, _ in results] == [True] * 4
    assert len({calls for _, calls in results}) == 1  # holders send as much as newcomers receive


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_all_send_to_all_at_the_same_time(over):
    def work(group):
        others = [rank for rank in range(group.size) if rank != group.rank]
        incoming = {rank: blank() for rank in others}
        hand_over(group, dict.fromkeys(others, make(group.rank)), incoming)
        return all(are_equal(tensors, make(rank)) for rank, tensors in incoming.items())

    assert World(3, over).run(work) == [True] * 3


def test_members_without_anything_to_move_need_not_wait():
    def work(group):
        if group.rank == 0:
            hand_over(group, {1: make(0)}, {})
        if group.rank == 1:
            tensors = blank()
            hand_over(group, {}, {0: tensors})
            return are_equal(tensors, make(0))
        hand_over(group, {}, {})
        return True

    assert World(3, "memory").run(work) == [True] * 3


def test_bytes_are_those_of_all_tensors_one_behind_another():
    content = TensorBytes(
        [torch.tensor([1, 2], dtype=torch.uint8), torch.zeros(0), torch.tensor([3, 4], dtype=torch.uint8)]
    )

    content.write(slice(1, 3), np.array([8, 9], np.uint8))

    assert content.read(content.span).tolist() == [1, 8, 9, 4]
