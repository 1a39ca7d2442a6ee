"""What a ZeroOptimizer refuses to be made of: it says who, what and what next, and nothing is changed."""

import pytest
import torch
from spread import of_all, spread
from zero_play import Scaled, batch_of, digest, make_small, take_steps

from phalanx.errors import ConfigError
from phalanx.parallel import DataParallel, ZeroOptimizer

ADAMW = torch.optim.AdamW


def train_plainly(group):
    model = DataParallel(make_small(), group)
    take_steps(model, ADAMW(model.parameters(), lr=1e-2), group, range(2))
    return digest(model)


def refuse(words, make, size=2):
    """``make(model, group)`` raises on every rank, and the model is trained as if nothing had been."""

    def work(group):
        expected = train_plainly(group)
        model = DataParallel(make_small(), group)
        before = digest(model)
        with pytest.raises(ConfigError, match=words):
            make(model, group)
        assert digest(model) == before
        assert not model._ownership.blocks
        take_steps(model, ADAMW(model.parameters(), lr=1e-2), group, range(2))
        return [expected, digest(model)]

    expected, found = of_all(spread(size, work))

    assert found == expected


def make_lr(group, **settings):
    return ADAMW([torch.nn.Parameter(torch.ones(1))], **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (torch.optim.LBFGS, {}, "LBFGS searches along a line .* use it without sharding, or another optimizer"),
        (torch.optim.SparseAdam, {}, "SparseAdam is for sparse gradients, .* or another optimizer"),
        (object, {}, "object.* is no class of optimizers: pass one of torch.optim or your own subclass"),
        (make_lr, {}, "function make_lr.* is no class of optimizers"),
        (ADAMW([torch.nn.Parameter(torch.ones(1))]), {}, r"(?s)AdamW \(.* is no class of optimizers"),
        (torch.optim.Muon, {}, r"refuses its settings, or a parameter of shape \[7\]: Muon .* another optimizer"),
        (ADAMW, {"lr": -1.0}, "refuses its settings, .*: Invalid learning rate: -1.0"),
        (ADAMW, {"rate": 1.0}, "refuses its settings, .*unexpected keyword argument 'rate'"),
        (ADAMW, {"unit": "row"}, "'row' is no unit: choose from block, parameter, layer"),
        (ADAMW, {"way": "random"}, "'random' is no way: choose from round-robin, contiguous, balanced"),
        (Scaled, {"unit": "block"}, "Scaled needs whole parameters: leave unit out, or pass parameter or layer"),
        (torch.optim.Adafactor, {"unit": "block"}, "Adafactor needs whole parameters"),
    ],
)
def test_an_optimizer_or_a_setting_that_cannot_be_is_refused(kind, settings, words):
    refuse(words, lambda model, group: ZeroOptimizer(model.parameters(), kind, group=group, **settings))


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda all_: [*all_, all_[1]], "twice, at place 1 of group 0 and place 4 of group 0: pass it once"),
        (lambda all_: [{"params": all_}, {"params": all_[2]}], "at place 2 of group 0 and place 0 of group 1"),
        (lambda _: [], "there are no parameters to update: pass model.parameters"),
        (lambda _: [{"params": []}], "there are no parameters to update"),
        (lambda all_: [*all_, "weight"], "parameter 4 of group 0 is 'weight', and no tensor: pass parameters"),
        (lambda _: ["weight"], "parameter 0 of group 0 is 'weight', and no tensor: pass parameters"),
    ],
)
def test_parameters_that_cannot_be_are_refused(choose, words):
    refuse(words, lambda model, group: ZeroOptimizer(choose(list(model.parameters())), ADAMW, group=group))


def test_a_first_group_may_be_empty():
    def work(group):
        model = DataParallel(make_small(), group)
        optimizer = ZeroOptimizer([{"params": []}, {"params": model.parameters()}], ADAMW, group=group, lr=1e-2)
        take_steps(model, optimizer, group, range(2))
        return [digest(model), train_plainly(group)]

    shared, full = of_all(spread(2, work))

    assert shared == full


def groups_of(model, cut, **settings):
    parameters = list(model.parameters())
    return [{"params": parameters[:cut]}, {"params": parameters[cut:], **settings}]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda model, group: ZeroOptimizer(list(model.parameters())[:: 1 - 2 * group.rank], ADAMW, group=group),
            r"rank 0 has parameter 0\.weight of .*, where rank 1 has parameter 2\.bias",
        ),
        (
            lambda model, group: ZeroOptimizer(model.parameters(), ADAMW, group=group, lr=1.0 + group.rank),
            r"rank 0 has AdamW with \{'lr': 1\.0\}.*, where rank 1 has AdamW with \{'lr': 2\.0\}",
        ),
        (
            lambda model, group: ZeroOptimizer(
                model.parameters(), ADAMW, group=group, unit=["block", "layer"][group.rank]
            ),
            "rank 0 has AdamW .* by block, balanced, where rank 1 has AdamW .* by layer, balanced",
        ),
        (
            lambda model, group: ZeroOptimizer(groups_of(model, 1 + group.rank), ADAMW, group=group),
            "rank 0 has a group of 1 with .*, where rank 1 has a group of 2",
        ),
        (
            lambda model, group: ZeroOptimizer(groups_of(model, 1, lr=1.0 + group.rank), ADAMW, group=group),
            r"rank 0 has a group of 3 with \{'lr': 1\.0\}, where rank 1 has a group of 3 with \{'lr': 2\.0\}",
        ),
    ],
)
def test_ranks_that_ask_for_different_things_are_named(make, words):
    refuse(words, make)


def test_a_model_whose_gradients_nobody_averages_is_refused():
    refuse(
        r"nobody in this group averages the gradient of the parameter of shape \[7, 31\]: wrap the model",
        lambda _, group: ZeroOptimizer(make_small().parameters(), ADAMW, group=group),
    )


def test_a_model_of_another_group_is_refused():
    refuse(
        "nobody in this group averages the gradient",
        lambda model, group: ZeroOptimizer(model.parameters(), ADAMW, group=group.subgroup([0, 1])),
    )


def test_who_is_alone_needs_no_data_parallel():
    def work(group):
        model = make_small()
        take_steps_alone(model, ZeroOptimizer(model.parameters(), ADAMW, group=group, lr=1e-2))
        full = make_small()
        take_steps_alone(full, ADAMW(full.parameters(), lr=1e-2))
        return [digest(model), digest(full)]

    ((shared, full),) = spread(1, work)

    assert shared == full


def take_steps_alone(model, optimizer):
    class Alone:
        rank = 0

    take_steps(model, optimizer, Alone, range(2), clip=None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (lambda model, _: {"params": model.module[0].weight}, "at place 0 of group 0 and place 0 of group 1"),
        (lambda *_: {"params": torch.nn.Parameter(torch.ones(2))}, "nobody in this group averages the gradient"),
        (lambda model, rank: {"params": model.module[2].weight, "lr": rank}, "rank 0 has a group of 1 with {'lr': 0}"),
    ],
)
def test_a_group_that_cannot_be_added_is_refused_and_training_goes_on(more, words):
    def work(group):
        def run(*, wrong):
            model = DataParallel(make_small(), group)
            optimizer = ZeroOptimizer(model.module[0].parameters(), ADAMW, group=group)
            take_steps(model, optimizer, group, [0])
            if wrong:
                with pytest.raises(ConfigError, match=words):
                    optimizer.add_param_group(more(model, group.rank))
            take_steps(model, optimizer, group, [1])
            return digest(model)

        return [run(wrong=wrong) for wrong in (False, True)]

    expected, found = of_all(spread(2, work))

    assert found == expected


@pytest.mark.parametrize("size", [1, 2])
def test_parameters_that_were_given_other_memory_need_a_new_optimizer(size):
    def work(group):
        model = DataParallel(make_small(), group)
        optimizer = ZeroOptimizer(model.parameters(), ADAMW, group=group)
        model.double()
        before = digest(model)
        model(batch_of(0, group.rank, torch.float64)).square().mean().backward()
        with pytest.raises(ConfigError, match=r"0\.weight has other memory than it had: .* make a new optimizer"):
            optimizer.step()
        return before == digest(model)

    assert spread(size, work) == [True] * size


class Switched(torch.optim.SGD):
    """Takes the mean off the gradients of groups that say so, which needs whole parameters."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if group.get("is_centered") and parameter.grad is not None:
                    parameter.grad.sub_(parameter.grad.mean())
        super().step()


def test_parameters_that_must_stay_whole_are_not_added_to_an_optimizer_by_blocks():
    def work(group):
        model = DataParallel(make_small(), group)
        first, *others = model.parameters()
        optimizer = ZeroOptimizer([{"params": [first], "name": "first"}], Switched, group=group, lr=0.1)
        with pytest.raises(ConfigError, match="Switched needs whole parameters"):
            optimizer.add_param_group({"params": others, "is_centered": True})
        return len(optimizer.param_groups)

    assert spread(2, work) == [1, 1]
