"""Parameters of 16 bits: their owner keeps them in f32, updates that, and rounds."""

import pytest
import torch
from spread import of_all, spread
from zero_play import Model, batch_of, digest, make_groups, make_model, tell_all

from phalanx.parallel import DataParallel, ZeroOptimizer

STEPS = 4
RATE = 1e-4  # less than the distance of two numbers in bf16: without masters next to nothing would be learnt


def train_by_hand(group, dtype, load):
    """The bits that masters in f32 for all parameters give; and the masters."""
    model = DataParallel(make_model(dtype), group)
    masters = {each: torch.nn.Parameter(each.detach().float()) for each in model.parameters()}
    groups = [{**one, "params": [masters[each] for each in one["params"]]} for one in make_groups(model)]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    for step in range(STEPS):
        if step == load:
            load_others(model)
            for each, master in masters.items():
                master.data.copy_(torch.where(master.to(dtype) == each, master, each.float()))
        model.zero_grad()
        model(batch_of(step, group.rank, dtype)).square().mean().backward()
        model.clip_grad_norm_(0.5)
        for each, master in masters.items():
            master.grad = None if each.grad is None else each.grad.float()
        optimizer.step()
        for each, master in masters.items():
            each.data.copy_(master)
    return model, {name: masters[each] for name, each in model.named_parameters()}


def train_sharded(group, dtype, load=None, steps=range(STEPS), **named):
    model = DataParallel(make_model(dtype), group)
    optimizer = ZeroOptimizer(make_groups(model), torch.optim.AdamW, group=group, lr=RATE, **named)
    take_narrow_steps(model, optimizer, group, dtype, steps, load)
    return model, optimizer


def take_narrow_steps(model, optimizer, group, dtype, steps, load=None):
    for step in steps:
        if step == load:
            load_others(model)
        optimizer.zero_grad()
        model(batch_of(step, group.rank, dtype)).square().mean().backward()
        model.clip_grad_norm_(0.5)
        optimizer.step()


def load_others(model):
    model.load_state_dict({name: each.flip(0) if each.ndim else each for name, each in model.state_dict().items()})


@pytest.mark.parametrize("load", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_weights_are_those_of_masters_kept_by_hand_also_if_others_are_loaded_in_between(size, dtype, load):
    def work(group):
        return [digest(train_by_hand(group, dtype, load)[0]), digest(train_sharded(group, dtype, load)[0])]

    by_hand, shared = of_all(spread(size, work))

    assert shared == by_hand


def test_masters_are_kept_once_among_all_ranks_and_collected():
    def work(group):
        model, by_hand = train_by_hand(group, torch.bfloat16, None)
        _, optimizer = train_sharded(group, torch.bfloat16)
        kept = sum(each.numel() for shard in optimizer._shards for each in shard.masters())
        full = optimizer.consolidate()
        if group.rank:
            return kept
        names = [name for one in make_groups(model) for name in names_of(model, one["params"])]
        assert all(torch.equal(full["state"][n]["master"], by_hand[names[n]].cpu()) for n in full["state"])
        return kept

    whole = sum(each.numel() for each in Model().parameters())
    assert sum(spread(2, work)) == whole


def names_of(model, parameters):
    names = {each: name for name, each in model.named_parameters()}
    return [names[each] for each in parameters]


@pytest.mark.parametrize("is_whole", [False, True])
def test_training_goes_on_with_the_bits_of_the_masters(is_whole):
    def work(group):
        straight, _ = train_sharded(group, torch.bfloat16)
        model, first = train_sharded(group, torch.bfloat16, steps=range(2))
        kept = tell_all(group, first.consolidate()) if is_whole else first.state_dict()
        again = DataParallel(make_model(torch.bfloat16), group)
        again.load_state_dict(model.state_dict())
        second = ZeroOptimizer(make_groups(again), torch.optim.AdamW, group=group, lr=RATE)
        second.load_state_dict(kept)
        take_narrow_steps(again, second, group, torch.bfloat16, range(2, STEPS))
        return [digest(straight), digest(again)]

    straight, again = of_all(spread(2, work))

    assert again == straight


def test_the_state_of_a_full_optimizer_without_masters_is_widened():
    def work(group):
        full = make_model(torch.bfloat16)
        optimizer = torch.optim.AdamW(make_groups(full), lr=RATE)
        full(batch_of(0, 0, torch.bfloat16)).mean().backward()
        optimizer.step()
        model = DataParallel(make_model(torch.bfloat16), group)
        shared = ZeroOptimizer(make_groups(model), torch.optim.AdamW, group=group, lr=RATE)
        shared.load_state_dict(optimizer.state_dict())
        kept = [each for one in shared.state.values() for each in one.values()]
        assert {each.dtype for each in kept} == {torch.float32}
        take_narrow_steps(model, shared, group, torch.bfloat16, range(2))
        return digest(model)

    of_all(spread(2, work))


def test_a_full_optimizers_state_lets_the_masters_begin_anew():
    def work(group):
        _, optimizer = train_sharded(group, torch.bfloat16)
        empty = torch.optim.AdamW(make_groups(make_model(torch.bfloat16)), lr=RATE).state_dict()
        optimizer.load_state_dict(empty)
        assert not optimizer.state
        leaves = [leaf for shard in optimizer._shards for leaf in shard.leaves]
        return all(torch.equal(each.block, each.block.bfloat16().float()) for each in leaves)

    assert spread(2, work) == [True, True]
