"""What a ZeroOptimizer keeps: each rank a part; together what the full optimizer keeps, key by key and bit by bit."""

import pytest
import torch
from spread import of_all, spread
from zero_play import (
    BY_BLOCKS,
    BY_PARAMETERS,
    digest,
    find_difference,
    make_groups,
    make_model,
    make_small,
    take_steps,
    tell_all,
    train,
)

from phalanx.errors import ConfigError
from phalanx.parallel import DataParallel, ZeroOptimizer

ALL = BY_BLOCKS | BY_PARAMETERS
QUICK = ["adamw", "adafactor"]
KINDS = [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in ALL if kind not in QUICK)]


def make_again(group, kind, settings, model, *, sharded):
    """The model's weights with a new optimizer."""
    again = DataParallel(make_model(), group)
    again.load_state_dict(model.state_dict())
    groups = make_groups(again)
    return again, ZeroOptimizer(groups, kind, group=group, **settings) if sharded else kind(groups, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("root", [0, 2])
def test_the_whole_state_is_that_of_the_full_optimizer_key_by_key_and_bit_by_bit(kind, root):
    def work(group):
        _, full = train(group, *ALL[kind], sharded=False, steps=2)
        _, shared = train(group, *ALL[kind], sharded=True, steps=2)
        found = shared.consolidate(to=root)
        return (found is None) if group.rank != root else find_difference(found, full.state_dict())

    assert spread(3, work) == [None if rank == root else True for rank in range(3)]


def test_the_whole_state_has_what_schedules_and_names_add_to_the_groups():
    def work(group):
        def run(*, sharded):
            model = DataParallel(make_small(), group)
            named = list(model.named_parameters())
            optimizer = ZeroOptimizer(named, torch.optim.AdamW, group=group) if sharded else torch.optim.AdamW(named)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
            take_steps(model, optimizer, group, [0])
            schedule.step()
            return optimizer

        shared, full = run(sharded=True).consolidate(), run(sharded=False).state_dict()
        return None if group.rank else find_difference(shared, full)

    assert spread(2, work) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("into", ["shard", "whole", "full"])
def test_training_goes_on_with_the_same_bits_from_a_state(kind, into):
    def work(group):
        straight, _ = train(group, *ALL[kind], sharded=True, steps=4)
        model, first = train(group, *ALL[kind], sharded=True, steps=2)
        kept = first.state_dict() if into == "shard" else tell_all(group, first.consolidate(to=1), root=1)
        again, second = make_again(group, *ALL[kind], model, sharded=into != "full")
        second.load_state_dict(kept)
        take_steps(again, second, group, range(2, 4))
        return [digest(straight), digest(again)]

    straight, again = of_all(spread(2, work))

    assert again == straight


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_state_of_a_full_optimizer_is_loaded_on_any_number_of_ranks(size, tmp_path):
    def first(group):
        model, optimizer = train(group, *ALL["adamw"], sharded=False, steps=2)
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "state")

    def second(group):
        weights, kept = torch.load(tmp_path / "state")
        model = DataParallel(make_model(), group)
        model.load_state_dict(weights)
        optimizer = ZeroOptimizer(make_groups(model), torch.optim.AdamW, group=group, lr=7.0)
        optimizer.load_state_dict(kept)
        shared = optimizer.consolidate()
        return None if group.rank else find_difference(shared, kept)

    spread(1, first)

    assert spread(size, second) == [None] * size


def test_loading_forgets_what_was_kept_and_takes_the_settings_over():
    def work(group):
        model, optimizer = train(group, *ALL["adamw"], sharded=True, steps=2)
        fresh = torch.optim.AdamW(make_groups(make_model()), lr=0.5).state_dict()
        optimizer.load_state_dict(fresh)
        assert optimizer.param_groups[0]["lr"] == 0.5
        full = DataParallel(make_model(), group)
        full.load_state_dict(model.state_dict())
        reference = torch.optim.AdamW(make_groups(full), lr=0.5)
        for one, other in ((model, optimizer), (full, reference)):
            take_steps(one, other, group, range(2))
        return [digest(full), digest(model)]

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_the_whole_state_stays_as_it_was_when_training_goes_on():
    def work(group):
        model, optimizer = train(group, *ALL["adamw"], sharded=True, steps=1)
        found = optimizer.consolidate()
        before = None if found is None else torch.cat([each["exp_avg"].view(-1) for each in found["state"].values()])
        take_steps(model, optimizer, group, [1])
        if group.rank == 0:
            after = torch.cat([each["exp_avg"].view(-1) for each in found["state"].values()])
            assert torch.equal(before, after)

    spread(2, work)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kept: kept["shard"].update(rank=1 - kept["shard"]["rank"]), r"shard of rank \d of 2, and here is rank"),
        (lambda kept: kept["shard"].update(size=3), r"of 3, and here is rank \d of 2: load what consolidate"),
        (lambda kept: kept["param_groups"].pop(), "other groups of parameters than this optimizer"),
        (lambda kept: kept["state"].update({"else.exp_avg": torch.ones(1)}), "has else, which this model has not"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed(change, words):
    def work(group):
        _, optimizer = train(group, *ALL["adamw"], sharded=True, steps=1)
        kept = optimizer.state_dict()
        kept["param_groups"][0]["lr"] = 77.0
        change(kept)
        before = {label: each.clone() for label, each in optimizer.labelled_state().items()}
        with pytest.raises(ConfigError, match=words):
            optimizer.load_state_dict(kept)
        assert optimizer.param_groups[0]["lr"] == ALL["adamw"][1]["lr"]
        return find_difference(optimizer.labelled_state(), before)

    assert spread(2, work) == [None, None]


def test_there_must_be_such_a_rank_to_collect_the_state_on():
    def work(group):
        _, optimizer = train(group, *ALL["sgd"], sharded=True, steps=1)
        with pytest.raises(ConfigError, match="there is no rank 2 to collect the state on: pass one from 0 to 1"):
            optimizer.consolidate(to=2)

    spread(2, work)


def test_the_ranks_together_keep_the_state_of_every_element_once():
    def work(group):
        model, optimizer = train(group, *BY_BLOCKS["sgd"], sharded=True, steps=1)
        momenta = sum(each["momentum_buffer"].numel() for each in optimizer.state.values())
        return momenta, sum(each.numel() for each in model.parameters())

    found = spread(3, work)

    unused = 5  # elements of the parameter without a gradient
    assert sum(momenta for momenta, _ in found) == found[0][1] - unused


def test_groups_of_one_parameter_each_do_not_all_go_to_one_rank():
    def work(group):
        model = DataParallel(torch.nn.Sequential(*(torch.nn.Linear(9, 9, bias=False) for _ in range(6))), group)
        optimizer = ZeroOptimizer([{"params": [each]} for each in model.parameters()], torch.optim.AdamW, group=group)
        model(torch.ones(2, 9)).sum().backward()
        optimizer.step()
        return sum(each["exp_avg"].numel() for each in optimizer.state.values())

    assert spread(3, work) == [6 * 81 // 3] * 3
