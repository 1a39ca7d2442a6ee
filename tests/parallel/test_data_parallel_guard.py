"""A gradient that is not finite is named on every rank, and the norm costs no call of its own."""

import pytest
from data_parallel_play import DEVICES, INPUTS, loss_of, make_net, make_world, ones, torch
from torch import nn

from phalanx.errors import NonFiniteGradient
from phalanx.parallel import DataParallel


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("over", ["arena", "tcp"])
def test_a_gradient_that_is_not_finite_is_named_on_every_rank_and_the_next_step_is_right(over, device):
    def work(group):
        model = DataParallel(make_net(device), group, bucket_bytes=64)
        loss_of(model, slice(None), device).backward()
        model.zero_grad()
        spoilt = loss_of(model, slice(None), device)
        if group.rank == 1:
            spoilt = spoilt + (model.module.again.weight * float("nan")).sum()
        with pytest.raises(NonFiniteGradient) as caught:
            spoilt.backward()
        model.zero_grad()
        (model.module.last.bias.sum() * group.rank).backward()
        error = caught.value
        return error.step, error.rank, error.parameter, str(error), model.module.last.bias.grad.tolist()

    results = make_world(3, over, device).run(work)

    words = (
        "the gradient of again.weight is not finite at step 1: rank 1 computed it; weights are those before this step"
    )
    assert results == [(1, 1, "again.weight", words, [1.0] * 3)] * 3


def test_a_sum_that_overflows_is_told_from_a_gradient_that_does(device):
    def work(group):
        net = nn.ParameterList([ones(3, device=device)])
        model = DataParallel(net, group)
        with pytest.raises(NonFiniteGradient, match="although each of them is") as caught:
            (net[0] * 3e38).sum().backward()
        del model
        return caught.value.rank, caught.value.parameter

    assert make_world(2, "arena", device).run(work) == [(None, "0")] * 2


def test_a_rank_that_counts_nothing_is_not_to_blame():
    def work(group):
        net = nn.ParameterList([ones(1)])
        model = DataParallel(net, group)
        model.weigh(group.rank)
        with pytest.raises(NonFiniteGradient) as caught:
            (net[0] * float("nan")).sum().backward()
        return caught.value.rank

    assert make_world(3).run(work) == [1, 1, 1]


def test_a_loop_that_deals_with_it_gets_what_is_not_finite():
    def work(group):
        net = nn.ParameterList([ones(1)])
        model = DataParallel(net, group, allow_non_finite=True)
        (net[0] * (float("inf") if group.rank else 1.0)).sum().backward()
        del model
        return net[0].grad.item()

    assert make_world(2).run(work) == [float("inf")] * 2


def test_a_step_makes_two_small_calls_besides_its_buckets_and_clipping_none(device):
    def work(group):
        model = DataParallel(nn.Linear(6, 3).to(device), group)
        before = group.statistics().calls
        model(INPUTS.to(device)).sum().backward()
        norms = [model.clip_grad_norm_(0.1)]
        calls = group.statistics().calls
        norms.append(model.clip_grad_norm_(0.1))  # of what was clipped: measured again
        return {name: calls[name] - before.get(name, 0) for name in ("all_reduce", "fold_lanes")}, norms

    results = make_world(2, "arena", device).run(work)

    assert [calls for calls, _ in results] == [{"all_reduce": 2, "fold_lanes": 1}] * 2
    for _, (before, after) in results:
        assert before > 1
        assert after == pytest.approx(0.1, rel=1e-4)


def test_the_norm_is_measured_again_when_gradients_were_changed():
    def work(group):
        model = DataParallel(nn.Linear(6, 3), group)
        model(INPUTS).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad.mul_(2)
        return model.clip_grad_norm_(1e9), torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()

    for ours, torchs in make_world(2).run(work):
        assert ours == pytest.approx(torchs, rel=1e-5)
