"""Gradients of which a rank has only its part: who changes them by hand, or adds to them, is told what to do."""

import pytest
import torch
from spread import of_all, spread
from zero_play import batch_of, digest, make_model, make_small, take_steps

from phalanx.errors import ConfigError
from phalanx.parallel import DataParallel, ZeroOptimizer


def backward(model, group, step=0):
    model(batch_of(step, group.rank)).square().mean().backward()


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def multiply(model):
    model.module[0].bias.grad.mul_(0.5)


def replace(model):
    model.module[0].bias.grad = model.module[0].bias.grad * 0.5


@pytest.mark.parametrize("change", [clip, multiply, replace])
def test_a_gradient_that_was_changed_by_hand_is_refused_and_the_next_step_is_right(change):
    def work(group):
        def run(*, wrong):
            model = DataParallel(make_small(), group)
            optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group)
            if wrong:
                before = digest(model)
                backward(model, group)
                change(model)
                with pytest.raises(
                    ConfigError, match=r"the gradient of 0\..* was changed .* clip with model.clip_grad_norm_"
                ):
                    optimizer.step()
                assert digest(model) == before
            take_steps(model, optimizer, group, range(2))
            return digest(model)

        return [run(wrong=each) for each in (False, True)]

    expected, found = of_all(spread(2, work))

    assert found == expected


def test_who_is_alone_may_change_gradients():
    def work(group):
        def run(make):
            model = DataParallel(make_small(), group)
            optimizer = make(model.parameters())
            backward(model, group)
            backward(model, group, 1)
            clip(model)
            multiply(model)
            optimizer.step()
            return digest(model)

        return [run(torch.optim.AdamW), run(lambda params: ZeroOptimizer(params, torch.optim.AdamW, group=group))]

    ((full, shared),) = spread(1, work)

    assert shared == full


def test_nothing_is_added_to_a_part_of_the_last_mean_and_the_next_step_is_right():
    def work(group):
        def run(*, wrong):
            model = DataParallel(make_model(), group)
            optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group)
            take_steps(model, optimizer, group, [0])
            if wrong:
                words = r"still has its part of the last mean.*zero_grad\(\) before, or .* no_sync\(\)"
                with pytest.raises(ConfigError, match=words):
                    backward(model, group, 1)
            take_steps(model, optimizer, group, [2])
            return digest(model)

        return [run(wrong=each) for each in (False, True)]

    expected, found = of_all(spread(2, work))

    assert found == expected


def test_a_gradient_left_over_from_before_counts_as_with_a_full_optimizer():
    def work(group):
        def run(*, sharded):
            net = make_small()
            net(batch_of(7, group.rank)).sum().backward()
            model = DataParallel(net, group)
            make = (lambda *given: ZeroOptimizer(*given, group=group)) if sharded else (lambda one, kind: kind(one))
            optimizer = make(model.parameters(), torch.optim.AdamW)
            backward(model, group)
            optimizer.step()
            return digest(model)

        return [run(sharded=each) for each in (False, True)]

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_a_step_may_be_taken_twice_with_the_same_gradients():
    def work(group):
        def run(*, sharded):
            model = DataParallel(make_small(), group)
            kind = torch.optim.AdamW
            parameters = model.parameters()
            optimizer = ZeroOptimizer(parameters, kind, group=group) if sharded else kind(parameters)
            backward(model, group)
            optimizer.step()
            optimizer.step()
            return digest(model)

        return [run(sharded=each) for each in (False, True)]

    full, shared = of_all(spread(2, work))

    assert shared == full


def test_each_rank_has_the_mean_of_what_it_owns_and_the_norm_of_all():
    def work(group):
        full = DataParallel(make_model(), group)
        backward(full, group)
        model = DataParallel(make_model(), group)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group)
        backward(model, group)
        means = dict(full.named_parameters())
        for leaf in (each for shard in optimizer._shards for each in shard.leaves):
            if leaf.parameter.grad is not None:
                own = slice(leaf.start, leaf.stop)
                assert torch.equal(leaf.parameter.grad.view(-1)[own], means[leaf.name].grad.view(-1)[own])
        return [full.clip_grad_norm_(0.1), model.clip_grad_norm_(0.1)]

    full, shared = of_all(spread(3, work))

    assert shared == full


def test_a_step_without_a_backward_says_what_is_missing():
    def work(group):
        model = DataParallel(make_small(), group)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group)
        take_steps(model, optimizer, group, range(1))
        optimizer.zero_grad(set_to_none=False)
        with pytest.raises(ConfigError, match=r"comes from no exchange since zero_grad\(\): call backward\(\) first"):
            optimizer.step()

    spread(2, work)
