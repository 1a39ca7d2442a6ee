"""An optimizer given as a class with settings, and the schedule of its learning rate."""

import pytest
import torch
from engine_play import LANES, Toy, batches_of, digest_of, loss, train
from spread import of_all, spread

from phalanx.errors import ConfigError
from phalanx.group import alone
from phalanx.parallel import Engine

ADAMW = torch.optim.AdamW


def make_engine(exchange, optimizer=ADAMW, **options):
    torch.manual_seed(7)
    return Engine(Toy(), loss, optimizer, exchange, **options)


def by_hand(leaves):
    """What the settings below stand for."""
    decaying = [leaf.block for leaf in leaves if leaf.parameter.ndim > 1]
    others = [leaf.block for leaf in leaves if leaf.parameter.ndim <= 1]
    groups = [{"params": decaying, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    return ADAMW([group for group in groups if group["params"]], lr=0.01)


SETTINGS = {
    "lr": 0.01,
    "weight_decay": 0.3,
    "groups": lambda _, parameter: {"weight_decay": 0.0} if parameter.ndim < 2 else {},
}


def digest_after(exchange, steps=4, **options):
    engine = make_engine(exchange, **options)
    train(engine, steps)
    return digest_of(engine)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
def test_a_class_with_settings_trains_like_the_optimizer_that_they_describe(zero):
    expected = of_all(spread(1, lambda group: digest_after(group, optimizer=by_hand)))
    without_groups = of_all(spread(1, lambda group: digest_after(group, lr=0.01, weight_decay=0.3)))

    found = of_all(spread(2, lambda group: digest_after(group, zero=zero, **SETTINGS)))

    assert found == expected != without_groups


def test_groups_see_names_and_whole_parameters():
    seen = {}
    with alone(lanes=LANES) as group:
        engine = make_engine(group, lr=0.01, groups=lambda name, _: seen.setdefault(name, {}))

    assert seen.keys() == {name for name, _ in engine.model.named_parameters()}
    assert len(engine.optimizer.param_groups) == 1


@pytest.mark.parametrize("optimizer", [{"optimizer": by_hand}, SETTINGS], ids=["function", "class"])
def test_a_schedule_multiplies_the_initial_rates_in_every_step(optimizer):
    steps = []

    def schedule(step):
        steps.append(step)
        return 0.5**step

    with alone(lanes=LANES) as group:
        plain = make_engine(group, **optimizer)
        for step in range(4):
            for each in plain.optimizer.param_groups:
                each["lr"] = 0.01 * 0.5**step
            plain.step(batches_of(step))
        engine = make_engine(group, schedule=schedule, **optimizer)
        train(engine, 4)

    assert digest_of(engine) == digest_of(plain)
    assert steps == [0, 1, 2, 3]


def test_a_run_that_resumes_has_the_rates_of_its_own_steps():
    options = {**SETTINGS, "schedule": lambda step: 1 / (1 + step)}
    with alone(lanes=LANES) as group:
        first = make_engine(group, **options)
        train(first, 3)
        second = make_engine(group, **options)
        second.load_state(first.state(), 3)
        train(first, 2)
        train(second, 2)

    assert digest_of(second) == digest_of(first)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learning_rate": 1}, r"AdamW has no setting learning_rate: it has lr, betas, eps, "),
        ({"groups": lambda *_: {"decay": 0}}, r"AdamW has no setting decay for \w+.*: it has lr, betas"),
        ({"groups": lambda *_: None}, "groups returned None for .*: return a dict of settings"),
        ({"groups": lambda *_: {"params": []}}, "AdamW has no setting params for "),
        ({"lr": -1.0}, "AdamW refuses its settings: Invalid learning rate: -1.0"),
        ({"optimizer": by_hand, "lr": 0.1}, "lr: settings are for an optimizer class"),
        ({"optimizer": by_hand, "groups": lambda *_: {}}, "groups: settings are for an optimizer class"),
        ({"optimizer": Toy}, "Toy is no optimizer: pass a class of torch.optim"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(options, words):
    with alone(lanes=LANES) as group, pytest.raises(ConfigError, match=words):
        make_engine(group, **options)


@pytest.mark.parametrize("factor", [float("nan"), None, "0.1"])
def test_a_schedule_that_returns_no_factor_is_refused_in_words(factor):
    with alone(lanes=LANES) as group:
        engine = make_engine(group, schedule=lambda _: factor)

        with pytest.raises(ConfigError, match=r"the schedule returned .* for step 0: return a factor"):
            engine.step(batches_of(0))
