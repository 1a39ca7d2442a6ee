"""Several optimizers for one model, sharded and full, and several for the same parameters, one after the other."""

import pytest
import torch
from spread import of_all, spread
from zero_play import batch_of, digest, full_and_sharded, make_model, make_small, take_steps

from phalanx.errors import ConfigError
from phalanx.parallel import DataParallel, ZeroOptimizer


def check(loop, size=2, **named):
    def work(group):
        return full_and_sharded(group, lambda model, make: loop(group, model, make), **named)

    full, shared = of_all(spread(size, work))

    assert shared == full


def backward(model, group, step):
    model(batch_of(step, group.rank)).square().mean().backward()


def test_some_parameters_may_have_a_full_optimizer():
    def loop(group, model, make):
        first, *rest = model.module.children()
        optimizers = [
            make(first.parameters(), lr=1e-2),
            torch.optim.SGD([each for one in rest for each in one.parameters()], lr=0.1, momentum=0.9),
        ]
        for step in range(3):
            backward(model, group, step)
            model.clip_grad_norm_(0.5)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    check(loop, model=make_model)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_may_have_two_optimizers_that_forget_gradients_one_after_the_other(overlap):
    def loop(group, model, make):
        parameters = list(model.parameters())
        optimizers = [
            make(parameters[::2], lr=1e-2),
            make(parameters[1::2], torch.optim.SGD, lr=0.1),
        ]
        for step in range(3):
            backward(model, group, step)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    check(loop, size=3, model=make_model, overlap=overlap)


def test_one_optimizer_may_have_steps_that_overlap_and_the_other_not():
    def work(group):
        found = []
        for is_sharded in (False, True):
            model = DataParallel(make_model(), group)
            parts = list(model.parameters())[:2], list(model.parameters())[2:]
            optimizers = [
                ZeroOptimizer(part, torch.optim.AdamW, group=group, overlap=overlap)
                if is_sharded
                else torch.optim.AdamW(part)
                for part, overlap in zip(parts, (True, False), strict=True)
            ]
            for step in range(4):
                model.zero_grad()
                backward(model, group, step)
                for optimizer in optimizers:
                    optimizer.step()
            found.append(digest(model))
        return found

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_the_gradient_of_another_optimizers_parameter_may_be_changed():
    def loop(group, model, make):
        optimizer = make(model.module[0].parameters(), lr=1e-2)
        other = torch.optim.SGD(model.module[2].parameters(), lr=0.1)
        for step in range(2):
            backward(model, group, step)
            model.module[2].weight.grad.mul_(2)
            optimizer.step()
            other.step()
            model.zero_grad()

    check(loop, model=make_small)


def test_a_new_optimizer_takes_the_place_of_the_last_and_the_last_says_so():
    def work(group):
        model = DataParallel(make_model(), group)
        last = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group, unit="parameter")
        take_steps(model, last, group, range(2))
        new = ZeroOptimizer(model.parameters(), torch.optim.SGD, group=group, lr=0.1, way="contiguous")
        take_steps(model, new, group, range(2, 4))
        with pytest.raises(ConfigError, match="scale has got another optimizer since"):
            take_steps(model, last, group, [4])
        full = DataParallel(make_model(), group)
        take_steps(full, torch.optim.AdamW(full.parameters()), group, range(2))
        take_steps(full, torch.optim.SGD(full.parameters(), lr=0.1), group, range(2, 4))
        return [digest(full), digest(model)]

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_models_with_the_same_names_need_an_optimizer_each():
    def work(group):
        models = [DataParallel(make_small(), group) for _ in range(2)]
        both = [each for model in models for each in model.parameters()]
        with pytest.raises(ConfigError, match=r"2 parameters are called 0\.weight: give each model an optimizer"):
            ZeroOptimizer(both, torch.optim.AdamW, group=group)
        optimizers = [ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group) for model in models]
        for model, optimizer in zip(models, optimizers, strict=True):
            take_steps(model, optimizer, group, range(2))
        full = DataParallel(make_small(), group)
        take_steps(full, torch.optim.AdamW(full.parameters()), group, range(2))
        return [digest(each) for each in (*models, full)]

    assert len(set(of_all(spread(2, work)))) == 1


def test_two_models_of_a_group_may_have_steps_that_overlap():
    def work(group):
        def run(**options):
            models = [DataParallel(make_small(), group) for _ in range(2)]
            optimizers = [
                ZeroOptimizer(each.parameters(), torch.optim.AdamW, group=group, **options) for each in models
            ]
            for step in range(6):
                take_steps(models[step % 2], optimizers[step % 2], group, [step])
                optimizers[step % 2].consolidate()
            return [digest(each) for each in models]

        return [run(), run(overlap=True)]

    apart, beside = of_all(spread(2, work))

    assert beside == apart
