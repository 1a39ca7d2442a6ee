"""What else a model may have, and what else may happen: DataParallel does what is expected, or says what is wrong."""

import os
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
    whole_batch_gradients,
)

from phalanx.errors import ConfigError, LinkClosed, PeerLost, PhalanxError
from phalanx.testing import World

torch = pytest.importorskip("torch")
from phalanx.parallel.data_parallel import DataParallel  # noqa: E402 - torch may not be there

nn = torch.nn


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def ones(*shape, device="cpu"):
    return nn.Parameter(torch.ones(*shape, device=device))


# Beginning alike


def test_everybody_begins_with_the_weights_and_buffers_of_rank_0(device):
    def work(group):
        net = make_net(device)
        net.register_buffer("mask", torch.tensor([group.rank == 0, True], device=device))
        net.register_buffer("narrow", torch.full((3,), group.rank + 0.5, dtype=torch.bfloat16, device=device))
        with torch.no_grad():
            for tensor in [*net.parameters(), net.seen]:
                tensor.fill_(group.rank + 7)
        model = DataParallel(net, group)
        assert (model.module.seen == 7).all()
        return content([*model.parameters(), *model.buffers()])

    assert len(set(make_world(3, "arena", device).run(work))) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net: net.first.register_parameter("more", ones(2)), "parameter first.more of \\[2\\] float32"),
        (lambda net: setattr(net, "last", nn.Linear(8, 4)), "last.weight of \\[4, 8\\] float32"),
        (lambda net: net.last.half(), "last.weight of \\[3, 8\\] float16"),
        (lambda net: net.last.requires_grad_(False), "frozen parameter last.weight"),
        (lambda net: net.register_buffer("extra", torch.ones(1)), "nothing more, where rank 2 has buffer extra"),
    ],
)
def test_models_that_differ_are_named_on_every_rank(change, words):
    def work(group):
        net = make_net()
        if group.rank == 2:
            change(net)
        with pytest.raises(ConfigError, match=r"rank 0 has .*rank 2 has .*same model everywhere") as caught:
            DataParallel(net, group)
        assert caught.match(words)
        return str(caught.value)

    assert len(set(make_world(3).run(work))) == 1


def test_settings_that_differ_are_named():
    def work(group):
        with pytest.raises(ConfigError, match="rank 0 has bucket_bytes=100, where rank 1 has bucket_bytes=101"):
            DataParallel(make_net(), group, bucket_bytes=100 + group.rank)

    make_world(2).run(work)


@pytest.mark.parametrize(
    ("net", "options", "words"),
    [
        (nn.Linear(2, 2), {"wire": "f16"}, "not as f16"),
        (nn.Linear(2, 2), {"bucket_bytes": 0}, "at least one element"),
        (nn.Linear(2, 2, dtype=torch.complex64), {}, "not complex64"),
    ],
)
def test_what_cannot_be_is_refused(net, options, words):
    def work(group):
        with pytest.raises(ConfigError, match=words):
            DataParallel(net, group, **options)

    make_world(2).run(work)


def test_names_are_those_of_the_module():
    def work(group):
        net = make_net()
        model = DataParallel(net, group)
        assert list(model.state_dict()) == list(net.state_dict())
        assert dict(model.named_parameters()).keys() == dict(net.named_parameters()).keys()
        assert dict(model.named_buffers()).keys() == {"seen"}
        model.load_state_dict({name: torch.ones_like(each) for name, each in net.state_dict().items()})
        return all(bool((each == 1).all()) for each in [*model.parameters(), *model.buffers()])

    assert make_world(2).run(work) == [True, True]


# Parameters of all kinds


def test_a_parameter_that_some_ranks_use_is_averaged_over_all_and_one_that_nobody_uses_is_left_alone(device):
    def work(group):
        net = nn.ParameterList([ones(2, device=device) for _ in range(4)])
        net[3].grad = torch.full_like(net[3], 5.0)
        model = DataParallel(net, group, bucket_bytes=8)
        sum(each.sum() * 9 for each in net[:2]).backward()
        net[:2].zero_grad()
        loss = net[0].sum() * 3
        if group.rank == 1:
            loss = loss + net[1].sum() * 6
        loss.backward()
        return [None if each.grad is None else each.grad.tolist() for each in model.parameters()]

    expected = [[3.0, 3.0], [2.0, 2.0], None, [5.0, 5.0]]
    assert make_world(3, "arena", device).run(work) == [expected] * 3


def test_what_added_up_without_an_exchange_counts_though_the_last_backward_does_not_touch_it():
    def work(group):
        net = nn.ParameterList([ones(1), ones(1)])
        model = DataParallel(net, group)
        with model.no_sync():
            (net[0] * (group.rank + 1)).sum().backward()
        net[1].sum().backward()
        return [each.grad.item() for each in model.parameters()]

    assert make_world(2).run(work) == [[1.5, 1.0]] * 2


def test_frozen_and_empty_parameters_are_left_alone():
    def work(group):
        net = nn.ParameterList([ones(0), ones(2).requires_grad_(False), ones(2)])
        DataParallel(net, group, bucket_bytes=1)
        ((net[2] * net[1]).sum() * group.rank + net[0].sum()).backward()
        assert net[1].grad is None
        return net[2].grad.tolist()

    assert make_world(2).run(work) == [[0.5, 0.5]] * 2


def test_a_parameter_that_is_no_longer_frozen_is_named():
    def work(group):
        net = make_net()
        net.last.bias.requires_grad_(False)
        model = DataParallel(net, group)
        net.last.bias.requires_grad_(True)
        with pytest.raises(ConfigError, match=r"last\.bias was frozen"):
            loss_of(model, slice(None)).backward()

    make_world(2).run(work)


def test_a_shared_parameter_is_exchanged_once():
    def work(group):
        net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        net[1].weight = net[0].weight
        model = DataParallel(net, group)
        model(torch.ones(1, 3) * (group.rank + 1)).sum().backward()
        assert len(model._trained) == 1
        return gradients_of(model).tobytes()

    assert len(set(make_world(3).run(work))) == 1


def test_a_sparse_gradient_is_refused_by_name():
    def work(group):
        model = DataParallel(nn.Embedding(4, 2, sparse=True), group)
        with pytest.raises(ConfigError, match="gradient of weight is sparse"):
            model(torch.tensor([1])).sum().backward()

    make_world(2).run(work)


def test_gradients_may_be_replaced_and_kept_in_any_order_of_elements():
    def work(group):
        model = DataParallel(nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last), group)
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 2, 4, 4), group.rank + 1.0)).sum().backward()
            for each in model.parameters():
                each.grad.data = each.grad.clone() * 2
        return gradients_of(model)

    for result in make_world(2).run(work):
        np.testing.assert_allclose(result, np.where(np.arange(len(result)) < 54, 4 * 1.5 * 2, 4 * 2))


@pytest.mark.parametrize("absent", [None, 0])
def test_buffers_follow_the_first_rank_that_counts(absent, device):
    def work(group):
        net = nn.Sequential(nn.BatchNorm1d(6)).to(device)
        model = DataParallel(net, group)
        if group.rank == absent:
            model.weigh(0)
        model(INPUTS.to(device) * (group.rank + 1)).square().sum().backward()
        return content(model.buffers()), float(net[0].running_var.mean())

    results = make_world(3, "arena", device).run(work)

    assert len({each for each, _ in results}) == 1
    alone = nn.BatchNorm1d(6)
    alone(INPUTS * (1 if absent is None else 2))
    assert results[0][1] == pytest.approx(float(alone.running_var.mean()), rel=1e-5)


def test_buffers_may_change_between_two_backwards():
    def work(group):
        model = DataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), group)
        losses = [model(INPUTS * (group.rank + number)).square().sum() for number in (1, 2)]
        for loss in losses:
            loss.backward()
        return content(model.buffers())

    assert len(set(make_world(2).run(work))) == 1


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
        assert outcomes[rank].unwrap() == ("rank 1 failed: ArithmeticError: no more", 1)


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
        DataParallel(net, group)
        hidden = net[0](INPUTS)
        hidden.register_hook(fail)
        with pytest.raises(ArithmeticError, match="half-way"):
            net[1](hidden).sum().backward()
        with pytest.raises(PhalanxError, match="second gradient in one exchange"):
            net[1](net[0](INPUTS)).sum().backward()

    make_world(2).run(work)


def test_the_thread_has_a_name_and_ends_with_the_model_or_the_group():
    threads = {}

    def work(group):
        def named():
            return [each for each in threading.enumerate() if each.name == f"phalanx-exchange-{group.rank}"]

        first, second = (DataParallel(make_net(), group) for _ in range(2))
        loss_of(first, slice(None)).backward()
        loss_of(second, slice(None)).backward()
        threads[group.rank] = named()
        first.close()
        first.close()
        left = len(named())
        with pytest.raises(LinkClosed, match="closed on this side"):
            loss_of(first, slice(None)).backward()
        return len(threads[group.rank]), left

    results = make_world(2).run(work)

    assert results == [(2, 1)] * 2
    assert not any(each.is_alive() for several in threads.values() for each in several)


def test_the_words_of_a_closed_group_come_from_backward():
    models = {}

    def work(group):
        models[group.rank] = DataParallel(Net(), group)

    make_world(2).run(work)

    for model in models.values():
        with pytest.raises(LinkClosed, match="closed on this side"):
            loss_of(model, slice(None)).backward()
