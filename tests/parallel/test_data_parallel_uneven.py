"""Ranks with different amounts, ranks that run out, and what goes wrong with DataParallel."""

import os
import re
import signal
import threading

import numpy as np
import pytest
from data_parallel_play import (
    DEVICES,
    INPUTS,
    Net,
    content,
    gradients_of,
    loss_of,
    make_net,
    make_world,
    needs_fork,
    ones,
    whole_batch_gradients,
)

from phalanx.errors import ConfigError, LinkClosed, PeerLost, PhalanxError
from phalanx.testing import World

torch = pytest.importorskip("torch")
from phalanx.parallel import DataParallel  # noqa: E402 - torch may not be there

nn = torch.nn


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


# Different amounts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ranks_with_different_amounts_count_for_what_they_have(dtype, device):
    expected = whole_batch_gradients(device=device)
    shares = [slice(0, 3), slice(3, 7), slice(7, 24)]

    def work(group):
        model = DataParallel(make_net(device, dtype), group, bucket_bytes=200)
        rows = shares[group.rank]
        model.weigh((rows.stop - rows.start) * 10_000)  # as many as would overflow f16
        loss_of(model, rows, device, dtype).backward()
        return gradients_of(model)

    results = make_world(3, "arena", device).run(work)

    assert len({each.tobytes() for each in results}) == 1
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-6 if dtype is torch.float32 else 2e-2)


def test_a_rank_that_counts_nothing_may_have_any_gradient_and_counts_again_afterwards():
    def work(group):
        net = nn.ParameterList([ones(1)])
        model = DataParallel(net, group)
        means = []
        for _ in range(2):
            model.zero_grad()
            if not means and group.rank == 1:
                model.weigh(0)
            factor = 4.0 if group.rank == 0 else float("nan" if not means else 2)
            (net[0] * factor).sum().backward()
            means.append(net[0].grad.item())
        return means

    assert make_world(2).run(work) == [[4.0, 3.0]] * 2


def test_nothing_comes_of_an_exchange_in_which_nobody_counts():
    def work(group):
        model = DataParallel(make_net(), group)
        model.weigh(0)
        loss_of(model, slice(None)).backward()
        return gradients_of(model).any()

    assert make_world(2).run(work) == [False, False]


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_amounts_that_cannot_be_are_refused(count):
    def work(group):
        with pytest.raises(ConfigError, match="0 times or more"):
            DataParallel(make_net(), group).weigh(count)

    make_world(1).run(work)


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_a_rank_that_runs_out_keeps_step_with_the_others(over, device):
    over = "tcp" if device == "cuda" and over == "memory" else over
    loops = [1, 4, 0, 3]

    def work(group):
        model = DataParallel(nn.Sequential(make_net(device), nn.BatchNorm1d(3).to(device)), group)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def update():
            optimizer.step()
            optimizer.zero_grad()

        with model.join(update):
            for _ in range(loops[group.rank]):
                loss_of(model, slice(group.rank, None, 4), device).backward()
                update()
        steps = sorted({int(state["step"]) for state in optimizer.state.values()})
        moments = [state["exp_avg_sq"] for state in optimizer.state.values()]
        return content([*model.parameters(), *model.buffers(), *moments]), steps

    results = make_world(4, over, device).run(work)

    assert len({each for each, _ in results}) == 1
    assert [steps for _, steps in results] == [[4]] * 4


def test_a_rank_that_ran_out_gets_the_weights_without_making_the_updates():
    alone = make_net()
    for rows in [slice(None), slice(1, None, 2)]:
        alone.zero_grad()
        loss_of(alone, rows).backward()
        torch.optim.SGD(alone.parameters(), 0.1).step()

    def work(group):
        model = DataParallel(make_net(), group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with model.join():
            for _ in range(1 + group.rank):
                optimizer.zero_grad()
                loss_of(model, slice(group.rank, None, 2)).backward()
                optimizer.step()
        return np.concatenate([each.detach().numpy().reshape(-1) for each in model.parameters()])

    results = make_world(2).run(work)

    expected = np.concatenate([each.detach().numpy().reshape(-1) for each in alone.parameters()])
    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)


def test_a_rank_that_ran_out_uses_no_parameter_for_the_others():
    def work(group):
        net = nn.ParameterList([ones(1), ones(1)])
        model = DataParallel(net, group)
        with model.join():
            for number in range(1 + group.rank):
                model.zero_grad()
                (net[0].sum() if number else net[0].sum() + net[1].sum()).backward()
        return [None if each.grad is None else each.grad.item() for each in net]

    assert make_world(2).run(work) == [[1.0, None]] * 2


# When it goes wrong


def train_forever(model):
    while True:
        loss_of(model, slice(None)).backward()


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_backward_names_the_rank_that_failed_and_does_so_again(over):
    def work(group):
        model = DataParallel(make_net(), group)
        if group.rank == 1:
            loss_of(model, slice(None)).backward()
            raise ArithmeticError("no more")
        with pytest.raises(PeerLost) as first:
            train_forever(model)
        with pytest.raises(PeerLost) as second:
            loss_of(model, slice(None)).backward()
        assert str(first.value) == str(second.value)
        return str(first.value), first.value.peer

    outcomes = make_world(3, over).start(work).outcomes()

    for rank in (0, 2):
        words, peer = outcomes[rank].unwrap()
        assert re.match("rank 1 failed: ArithmeticError: no more; rank 1 is process [0-9]+ on ", words)
        assert peer == 1


@needs_fork
def test_a_killed_rank_is_named():
    def work(group):
        model = DataParallel(make_net(), group)
        if group.rank == 1:
            loss_of(model, slice(None)).backward()
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLost, match="rank 1"):
            train_forever(model)
        return True

    outcomes = World(3, "arena", processes=True).start(work).outcomes()

    assert [each.unwrap() for each in outcomes] == [True, True]


def test_a_backward_that_failed_half_way_is_not_taken_for_half_of_the_next():
    def fail(_):
        raise ArithmeticError("half-way")

    def work(group):
        net = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)])
        model = DataParallel(net, group)
        hidden = net[0](INPUTS)
        hidden.register_hook(fail)
        with pytest.raises(ArithmeticError, match="half-way"):
            net[1](hidden).sum().backward()
        with pytest.raises(PhalanxError, match="second gradient in one step"):
            net[1](net[0](INPUTS)).sum().backward()
        model.close()

    make_world(2).run(work)


def test_one_thread_of_the_group_carries_all_exchanges_and_ends_with_it():
    threads = {}

    def work(group):
        models = [DataParallel(make_net(), group) for _ in range(2)]
        for model in models:
            loss_of(model, slice(None)).backward()
        threads[group.rank] = [each for each in threading.enumerate() if each.name == f"phalanx-exchange-{group.rank}"]
        return len(threads[group.rank])

    results = make_world(2).run(work)

    assert results == [1, 1]
    assert not any(each.is_alive() for several in threads.values() for each in several)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_module_trains_alone_when_its_data_parallel_is_closed_or_dropped(is_dropped):
    def work(group):
        net = nn.ParameterList([ones(1)])
        model = DataParallel(net, group)
        (net[0] * group.rank).sum().backward()
        exchanged = net[0].grad.item()
        if is_dropped:
            del model
        else:
            model.close()
            model.close()
        net.zero_grad()
        (net[0] * group.rank).sum().backward()
        return exchanged, net[0].grad.item()

    assert make_world(2).run(work) == [(0.5, 0.0), (0.5, 1.0)]


def test_the_words_of_a_closed_group_come_from_backward():
    models = {}

    def work(group):
        models[group.rank] = DataParallel(Net(), group)

    make_world(2).run(work)

    for model in models.values():
        with pytest.raises(LinkClosed, match="closed on this side"):
            loss_of(model, slice(None)).backward()
