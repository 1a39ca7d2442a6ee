"""What people do with an optimizer: ZeroOptimizer does it, too, with the bits of the full one."""

import pytest
import torch
from spread import of_all, spread
from torch.optim import lr_scheduler
from zero_play import batch_of, full_and_sharded, make_model, make_small, take_steps

from phalanx.parallel import DataParallel, ZeroOptimizer


def check(loop, size=2, over="arena", **named):
    """``loop(group, model, make)`` gives the same weights with full and with sharded optimizers."""

    def work(group):
        return full_and_sharded(group, lambda model, make: loop(group, model, make), **named)

    full, shared = of_all(spread(size, work, over))

    assert shared == full


def loss_of(model, group, step=0):
    return model(batch_of(step, group.rank)).square().mean()


# Settings that change


def every_other(optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step % 2))


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)


def on_plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)


@pytest.mark.parametrize("schedule", [every_other, one_cycle, on_plateau])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_schedule_changes_the_settings_of_every_rank(schedule, kind):
    def loop(group, model, make):
        optimizer = make(model.parameters(), kind, lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        scheduler = schedule(optimizer)
        for step in range(4):
            take_steps(model, optimizer, group, [step])
            scheduler.step(*([1.0] if schedule is on_plateau else []))

    check(loop, model=make_small)


def test_parameters_may_be_added_later_with_settings_of_their_own():
    def loop(group, model, make):
        first, middle, *rest = model.module.children()
        optimizer = make([{"params": first.parameters()}], lr=1e-2)
        take_steps(model, optimizer, group, range(2))
        optimizer.add_param_group({"params": list(middle.parameters()), "lr": 1e-3, "weight_decay": 0.5})
        take_steps(model, optimizer, group, range(2, 4))
        optimizer.add_param_group({"params": rest[-1].bias})
        take_steps(model, optimizer, group, range(4, 6))

    check(loop, model=make_model)


def test_what_was_kept_of_the_first_parameters_stays_when_others_are_added():
    def work(group):
        model = DataParallel(make_small(), group)
        optimizer = ZeroOptimizer(model.module[0].parameters(), torch.optim.AdamW, group=group)
        take_steps(model, optimizer, group, range(2))
        before = {label: tensor.clone() for label, tensor in optimizer.labelled_state().items()}
        optimizer.add_param_group({"params": model.module[2].parameters()})
        after = optimizer.labelled_state()
        return before.keys() == after.keys() and all(torch.equal(after[label], before[label]) for label in before)

    assert spread(2, work) == [True, True]


# The loop


def test_a_closure_computes_the_loss_that_step_returns():
    losses = []

    def loop(group, model, make):
        optimizer = make(model.parameters(), lr=1e-2)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, group)
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(3)])
        assert losses[-1] == losses[0]
        assert losses[0][2] < losses[0][0]

    check(loop, model=make_small)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_of_model", [True, False])
def test_gradients_are_forgotten_in_both_ways_by_the_optimizer_or_the_model(set_to_none, is_of_model):
    def loop(group, model, make):
        optimizer = make(model.parameters(), lr=1e-2)
        for step in range(3):
            loss_of(model, group, step).backward()
            optimizer.step()
            (model if is_of_model else optimizer).zero_grad(set_to_none=set_to_none)
        assert all((each.grad is None) == set_to_none for each in model.parameters())

    check(loop, model=make_small)


def test_micro_batches_add_up_without_an_exchange():
    def loop(group, model, make):
        optimizer = make(model.parameters(), lr=1e-2)
        for step in range(2):
            optimizer.zero_grad(set_to_none=step == 0)
            with model.no_sync():
                loss_of(model, group, step).backward()
                loss_of(model, group, step + 10).backward()
            loss_of(model, group, step + 20).backward()
            optimizer.step()

    check(loop, model=make_model)


def test_ranks_may_count_differently():
    def loop(group, model, make):
        optimizer = make(model.parameters(), lr=1e-2)
        for step in range(3):
            model.weigh(step + 2 * group.rank)
            take_steps(model, optimizer, group, [step])

    check(loop, model=make_small, size=3)


@pytest.mark.parametrize("overlap", [False, True])
def test_ranks_may_go_through_the_loop_a_different_number_of_times(overlap):
    def loop(group, model, make):
        optimizer = make(model.parameters(), lr=1e-2)
        with model.join(update=optimizer.step):
            take_steps(model, optimizer, group, range(2 + group.rank), clip=None)

    check(loop, model=make_small, size=3, overlap=overlap)


def test_gradients_may_travel_as_bf16():
    def loop(group, model, make):
        take_steps(model, make(model.parameters(), lr=1e-2), group, range(3))

    check(loop, over="tcp", model=make_model, options={"wire": "bf16"})


# Parameters of all kinds


class Odd(torch.nn.Module):
    """Parameters that are frozen, whole numbers, empty, of one element, used by one rank only, and used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(31, 31)
        self.second = torch.nn.Linear(31, 31)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.codes = torch.nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.ones(0, 3))
        self.one = torch.nn.Parameter(torch.ones(()))
        self.sometimes = torch.nn.Parameter(torch.ones(2))
        self.never = torch.nn.Parameter(torch.ones(2))

    def forward(self, inputs):
        found = self.second(torch.tanh(self.first(inputs))) * self.one + self.empty.sum()
        return found * self.sometimes.sum() if inputs[0, 0] > 0 else found


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.NAdam])
@pytest.mark.parametrize("size", [1, 3])
def test_frozen_unused_empty_single_and_tied_parameters_are_updated_as_they_should(kind, size):
    def loop(group, model, make):
        take_steps(model, make(model.parameters(), kind, lr=1e-2), group, range(3))
        assert model.module.second.weight is model.module.first.weight

    check(loop, size, model=Odd)


def test_a_parameter_that_is_frozen_later_is_left_alone():
    def loop(group, model, make):
        optimizer = make(model.parameters(), lr=1e-2)
        take_steps(model, optimizer, group, [0])
        model.module[0].weight.requires_grad_(False)
        before = model.module[0].weight.clone()
        take_steps(model, optimizer, group, range(1, 4))
        assert torch.equal(model.module[0].weight, before)

    check(loop, model=make_small)


@pytest.mark.parametrize("first", [1, 2])
def test_parameters_that_are_frozen_before_an_optimizer_is_made_or_gets_more_do_not_shift_the_others(first):
    def loop(group, model, make):
        parameters = list(model.parameters())
        optimizer = make(parameters[:first], lr=1e-2)
        parameters[0].requires_grad_(False)
        optimizer.add_param_group({"params": parameters[first:]})
        take_steps(model, optimizer, group, range(3))

    check(loop)


def test_who_is_alone_may_train_later_what_was_frozen_first():
    def loop(group, model, make):
        model.module[0].requires_grad_(False)
        optimizer = make(model.parameters(), lr=1e-2)
        take_steps(model, optimizer, group, [0])
        model.module[0].requires_grad_(True)
        take_steps(model, optimizer, group, range(1, 3))

    check(loop, size=1, model=make_small)


@pytest.mark.parametrize("size", [1, 2])
def test_a_parameter_may_lie_in_memory_in_any_order_and_stays_so(size):
    def make_across():
        model = make_model()
        model.middle.weight = torch.nn.Parameter(model.middle.weight.data.t().contiguous().t())
        return model

    def loop(group, model, make):
        optimizer = make(model.parameters(), torch.optim.SGD, lr=1e-2, momentum=0.9)
        take_steps(model, optimizer, group, [0, 1])
        with torch.no_grad():
            model.module.middle.weight.mul_(0.5)
        take_steps(model, optimizer, group, [2])
        assert not model.module.middle.weight.is_contiguous()

    check(loop, size, model=make_across)
