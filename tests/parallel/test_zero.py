"""ZeroOptimizer gives the bits of the full optimizer, whatever it shards and among however many ranks."""

import pytest
import torch
from spread import of_all, spread
from zero_play import BY_BLOCKS, BY_PARAMETERS, digest, full_and_sharded, make_small, take_steps, train

ALL = BY_BLOCKS | BY_PARAMETERS


def train_both(size, kinds, over, steps):
    """The weights after some steps by kind of optimizer, full and shared."""

    def work(group):
        return [
            {kind: digest(train(group, *ALL[kind], sharded=sharded, steps=steps)[0]) for kind in kinds}
            for sharded in (False, True)
        ]

    return of_all(spread(size, work, over))


@pytest.mark.slow
@pytest.mark.timeout(600)  # 16 optimizers, twice, on as many as five processes
@pytest.mark.parametrize(("size", "over"), [(1, "arena"), (2, "arena"), (3, "tcp"), (5, "arena")])
def test_weights_are_those_of_the_full_optimizer(size, over):
    full, shared = train_both(size, ALL, over, steps=8)

    assert shared == full
    assert len(set(full.values())) >= len(ALL) - 2  # kinds of AdamW may have the same bits


@pytest.mark.parametrize("size", [2, 3])
def test_a_few_steps_give_the_weights_of_the_full_optimizer(size):
    full, shared = train_both(size, ["adamw", "sgd", "adafactor"], "arena", steps=3)

    assert shared == full


@pytest.mark.parametrize("over", ["arena", "tcp"])
def test_ranks_on_two_hosts_give_the_weights_of_the_full_optimizer(over):
    def work(group):
        def loop(model, make):
            take_steps(model, make(model.parameters(), lr=1e-2), group, range(3))

        return full_and_sharded(group, loop)

    full, shared = of_all(spread(3, work, over, hosts=["a", "a", "b"]))

    assert shared == full


@pytest.mark.parametrize("unit", ["block", "parameter", "layer"])
def test_any_unit_given_in_any_way_gives_the_weights_of_the_full_optimizer(unit):
    def work(group):
        def loop(model, make):
            take_steps(model, make(model.parameters(), lr=1e-2), group, range(2))

        ways = ["balanced", "contiguous", "round-robin"]
        return [full_and_sharded(group, loop, unit=unit, way=way) for way in ways]

    digests = of_all(spread(2, work))

    assert [shared for _, shared in digests] == [full for full, _ in digests]


def test_muon_updates_whole_matrices():
    def work(group):
        def loop(model, make):
            matrices = [each for each in model.parameters() if each.ndim == 2]
            others = [each for each in model.parameters() if each.ndim < 2]
            optimizers = [make(matrices, torch.optim.Muon, lr=1e-2), torch.optim.SGD(others, lr=1e-2)]
            for step in range(2):
                take_steps(model, optimizers[0], group, [step])
                optimizers[1].step()
                optimizers[1].zero_grad()

        return full_and_sharded(group, loop, model=make_small)

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_a_parameter_is_cut_only_for_an_optimizer_that_does_not_mind():
    def work(group):
        cut = [train(group, *ALL[kind], sharded=True, steps=1)[1] for kind in ("lion", "scaled")]
        return [max(leaf.block.numel() for shard in each._shards for leaf in shard.leaves) for each in cut]

    largest = spread(2, work)

    assert max(by_blocks for by_blocks, _ in largest) == 2**18
    assert max(by_parameters for _, by_parameters in largest) == 577 * 613


def test_all_ranks_of_a_subgroup_share_an_optimizer():
    def work(group):
        def loop(model, make):
            take_steps(model, make(model.parameters(), lr=1e-2), pair, range(3))

        found = None
        if group.rank != 1:
            pair = group.subgroup([2, 0])
            found = full_and_sharded(pair, loop)
        group.barrier()  # a rank that left would end it for all
        return found

    results = spread(3, work)

    assert results[0] == results[2]
    assert results[0][0] == results[0][1]


def test_a_step_sends_as_many_bytes_as_with_the_full_optimizer():
    def work(group):
        sent = []
        for sharded in (False, True):
            model, optimizer = train(group, *ALL["adamw"], sharded=sharded, steps=1, clip=None)
            before = group.statistics().bytes_sent
            take_steps(model, optimizer, group, [1], clip=None)
            sent.append(group.statistics().bytes_sent - before)
        return sent

    full, shared = (sum(each) for each in zip(*spread(3, work, "tcp"), strict=True))

    assert shared == pytest.approx(full, rel=0.01)
