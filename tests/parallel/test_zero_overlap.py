"""Weights that arrive while the next forward pass goes on: whoever looks at them waits first."""

import copy

import pytest
import torch
from spread import of_all, spread
from zero_play import batch_of, find_difference, full_and_sharded, make_model, take_steps

from phalanx.parallel import DataParallel, ZeroOptimizer
from phalanx.parallel.zero.arrivals import Arrivals


class Arrival:
    """Something that is there only when somebody has waited for it."""

    def __init__(self, parameter):
        self.parameters = [parameter]
        self.is_there = False

    def wait(self):
        self.is_there = True


def send(model):
    """Send something to every parameter of a watched model."""
    arrivals, sent = Arrivals(), {}
    arrivals.watch(model)

    def again():
        for name, parameter in model.named_parameters():
            sent[name] = Arrival(parameter)
            arrivals.put(sent[name])

    again()
    return arrivals, sent, again


class Chain(torch.nn.Module):
    """Modules that are called, of which one's parameters are taken by another, and one that is no module to call."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.attention = torch.nn.MultiheadAttention(4, 1)
        self.shifts = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])
        self.last = torch.nn.Linear(4, 4)
        self.after = lambda _: None

    def forward(self, x):
        self.after("begin")
        x = self.first(x)
        self.after("first")
        x, _ = self.attention(x, x, x)
        self.after("attention")
        x = self.last(x + self.shifts[0])
        self.after("last")
        return x


def test_a_module_waits_for_its_own_parameters_and_those_of_others_inside_that_are_never_called():
    model, there = Chain(), {}
    _, sent, again = send(model)
    model(torch.ones(2, 4))
    assert all(each.is_there for each in sent.values())
    model.after = lambda name: there.setdefault(
        name, {key.split(".")[0] for key, each in sent.items() if each.is_there}
    )
    again()

    model(torch.ones(2, 4))

    assert there == {
        "begin": {"shifts"},
        "first": {"shifts", "first"},
        "attention": {"shifts", "first", "attention"},
        "last": {"shifts", "first", "attention", "last"},
    }
    assert all(each.is_there for each in sent.values())


def test_a_tied_parameter_is_waited_for_by_the_first_that_needs_it():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(4, 4)
            self.head = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4)))
            self.head[0][0].weight = self.embed.weight

        def forward(self, x):
            hidden = self.embed(x)
            seen.append(sent["embed.weight"].is_there)
            return self.head(hidden)

    model, seen = Tied(), []
    _, sent, again = send(model)

    for _ in range(2):
        model(torch.ones(2, 4))
        again()

    assert seen == [True, True]


@pytest.mark.parametrize(
    "look",
    [
        lambda model: model.state_dict(),
        lambda model: model.last.state_dict(),
        lambda model: model.load_state_dict(copy.deepcopy(dict(Chain().named_parameters()))),
    ],
)
def test_weights_are_waited_for_before_they_are_saved_or_loaded(look):
    model = Chain()
    _, sent, _ = send(model)

    look(model)

    assert all(each.is_there for each in sent.values())


@pytest.mark.parametrize("over", ["arena", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_steps_that_overlap_give_the_weights_of_the_full_optimizer(size, over):
    def work(group):
        def loop(model, make):
            take_steps(model, make(model.parameters(), lr=1e-2), group, range(4))

        return full_and_sharded(group, loop, overlap=True)

    full, shared = of_all(spread(size, work, over))

    assert shared == full


def test_after_wait_everything_is_there_and_what_is_computed_and_kept_is_right():
    def work(group):
        def run(*, sharded):
            model = DataParallel(make_model(), group)
            kind = torch.optim.AdamW
            optimizer = (
                ZeroOptimizer(model.parameters(), kind, group=group, overlap=True)
                if sharded
                else kind(model.parameters())
            )
            take_steps(model, optimizer, group, range(2))
            with torch.no_grad():
                result = model(batch_of(9, 0))
            take_steps(model, optimizer, group, [2])
            state = optimizer.consolidate() if sharded else copy.deepcopy(optimizer.state_dict())
            take_steps(model, optimizer, group, [3])
            if sharded:
                optimizer.wait()
            return result, state, [each.detach().clone() for each in model.parameters()]

        full, shared = run(sharded=False), run(sharded=True)
        return [
            torch.equal(shared[0], full[0]),
            None if group.rank else find_difference(shared[1], full[1]),
            all(torch.equal(one, two) for one, two in zip(shared[2], full[2], strict=True)),
        ]

    assert spread(2, work) == [[True, None, True]] * 2


def test_other_weights_may_be_loaded_while_the_last_arrive():
    def work(group):
        def loop(model, make):
            optimizer = make(model.parameters(), lr=1e-2)
            take_steps(model, optimizer, group, range(2))
            model.load_state_dict(make_model().state_dict())
            take_steps(model, optimizer, group, range(2, 4))

        return full_and_sharded(group, loop, overlap=True)

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_parameters_may_be_added_while_weights_arrive():
    def work(group):
        def loop(model, make):
            optimizer = make(model.module.first.parameters(), lr=1e-2)
            take_steps(model, optimizer, group, range(2))
            optimizer.add_param_group({"params": model.module.middle.parameters()})
            take_steps(model, optimizer, group, range(2, 4))

        return full_and_sharded(group, loop, overlap=True)

    full, shared = of_all(spread(2, work))

    assert shared == full
