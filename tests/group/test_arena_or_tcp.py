"""Which ranks share memory, and what they say where they cannot."""

import logging

import numpy as np
import pytest

from phalanx.testing import World
from phalanx.transport import membarrier
from refusing import MEMBARRIER, MEMFD_CREATE, needs_x86, refuse


class Heard(logging.Handler):
    """What is logged in this process."""

    def __init__(self):
        super().__init__()
        self.words = []
        logging.getLogger("phalanx").addHandler(self)

    def emit(self, record):
        self.words.append(record.getMessage())


def add_up(group):
    return [float(group.all_reduce(np.full(50_000, group.rank + 1.0))[-1]), len(group.hosts)]


@pytest.fixture
def join(monkeypatch):
    """Have ranks do something before they join, and keep what they log."""

    def before_joining(prepare):
        def join(world, rank, *arguments):
            prepare(rank)
            heard = Heard()
            group = joined(world, rank, *arguments)
            group.heard = heard
            return group

        joined = World.join
        monkeypatch.setattr(World, "join", join)

    return before_joining


@needs_x86
@pytest.mark.parametrize(
    ("number", "words"),
    [(MEMFD_CREATE, "Operation not permitted"), (MEMBARRIER, "membarrier: Operation not permitted")],
)
def test_a_rank_that_may_not_share_memory_uses_tcp_and_says_why(join, monkeypatch, number, words):
    monkeypatch.setattr(membarrier, "IS_NEEDED", True)
    join(lambda rank: refuse(number) if rank == 1 else None)

    def on_rank(group):
        result = add_up(group)
        group.subgroup([0, 1, 2]).barrier()
        group.subgroup([1, 2] if group.rank else [0]).barrier()
        return [*result, [each for each in group.heard.words if "memory" in each]]

    outcomes = World(3, "arena", processes=True).run(on_rank)

    assert [outcome[:2] for outcome in outcomes] == [[6.0, 3]] * 3
    assert [len(heard) for *_, heard in outcomes] == [0, 1, 0]
    assert outcomes[1][2][0].startswith("rank 1 uses TCP on its own host, too: it cannot share memory")
    assert words in outcomes[1][2][0]


def test_ranks_share_memory_where_the_processor_needs_membarrier(monkeypatch):
    monkeypatch.setattr(membarrier, "IS_NEEDED", True)

    def on_rank(group):
        for _ in range(200):
            result = add_up(group)
        return result

    assert World(3, "arena", processes=True).run(on_rank) == [[6.0, 1]] * 3
