"""Ranks that train one model with DataParallel do what one rank with all the samples would do, and stay equal."""

import numpy as np
import pytest
from data_parallel_play import (
    DEVICES,
    INPUTS,
    content,
    gradients_of,
    loss_of,
    make_net,
    make_world,
    needs_fork,
    whole_batch_gradients,
)

from phalanx.testing import World

torch = pytest.importorskip("torch")
from phalanx.parallel import DataParallel  # noqa: E402 - torch may not be there

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def train(model, optimizer, steps, rows, device="cpu"):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, rows, device).backward()
        optimizer.step()


def weights_of(model):
    return np.concatenate([each.detach().cpu().double().reshape(-1).numpy() for each in model.parameters()])


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_do_what_one_rank_with_the_whole_batch_does(size, over):
    alone = make_net()
    train(alone, torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9), 6, slice(None))

    def work(group):
        model = DataParallel(make_net(), group, bucket_bytes=200)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        train(model, optimizer, 6, slice(group.rank, None, group.size))
        return weights_of(model)

    results = make_world(size, over).run(work)

    np.testing.assert_allclose(results[0], weights_of(alone), rtol=1e-5, atol=1e-6)
    assert len({each.tobytes() for each in results}) == 1


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_gives_the_mean_with_the_same_bits_everywhere(dtype, device):
    expected = whole_batch_gradients(device=device)

    def work(group):
        model = DataParallel(make_net(device, dtype), group, bucket_bytes=100)
        loss_of(model, slice(group.rank, None, 3), device, dtype).backward()
        assert {each.grad.dtype for each in model.parameters()} == {dtype}
        return gradients_of(model)

    results = make_world(3, "arena", device).run(work)

    assert len({each.tobytes() for each in results}) == 1
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=max(TOLERANCE[dtype], 1e-6))


@pytest.mark.parametrize("over", ["tcp", "arena"])
def test_parameters_of_different_types_are_averaged_together(over, device):
    def work(group):
        net = torch.nn.ParameterList(
            torch.full((number + 1,), 1.0, dtype=dtype, device=device) for number, dtype in enumerate(TYPES * 2)
        )
        model = DataParallel(net, group, bucket_bytes=8)
        sum((each.double() * (group.rank + 1)).sum() for each in model.parameters()).backward()
        return gradients_of(model)

    for result in make_world(3, over, device).run(work):
        np.testing.assert_array_equal(result, 2.0)


@pytest.mark.parametrize("optimizer_type", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_any_optimizer_keeps_ranks_equal(optimizer_type, set_to_none, device):
    def work(group):
        model = DataParallel(make_net(device), group)
        optimizer = optimizer_type(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(model, slice(group.rank, None, 2), device).backward()
            optimizer.step()
        return content(model.parameters())

    results = make_world(2, "arena", device).run(work)

    assert results[0] == results[1] != content(make_net().parameters())


def test_ranks_on_several_hosts_agree():
    def work(group):
        model = DataParallel(make_net(), group, bucket_bytes=200)
        train(model, torch.optim.SGD(model.parameters(), 0.1), 3, slice(group.rank, None, 4))
        return content(model.parameters())

    assert len(set(make_world(4, hosts=["a", "a", "b", "b"]).run(work))) == 1


def test_gradients_may_travel_as_bf16():
    expected = whole_batch_gradients()

    def work(group):
        model = DataParallel(make_net(), group, wire="bf16")
        loss_of(model, slice(group.rank, None, 4)).backward()
        return gradients_of(model)

    results = make_world(4, "memory").run(work)

    assert len({each.tobytes() for each in results}) == 1
    np.testing.assert_allclose(results[0], expected, rtol=2e-2, atol=1e-2)
    assert (results[0] != expected).any()
    assert not (results[0].astype(np.float32).view(np.uint32) & 0xFFFF).any()


def test_a_bucket_is_exchanged_while_backward_goes_on(device):
    class Look(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs, model):
            context.model = model
            return inputs.clone()

        @staticmethod
        def backward(context, gradient):
            context.model._reducer._pending[2].wait(timeout_s=20)  # the last layer's has been exchanged
            return gradient, None

    def work(group):
        net = torch.nn.ModuleList([torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)]).to(device)
        model = DataParallel(net, group, bucket_bytes=1)
        net[1](Look.apply(net[0](INPUTS.to(device)), model)).sum().backward()
        return len(model._reducer.layout.buckets)

    assert make_world(2, "arena", device).run(work) == [4, 4]


def test_gradients_add_up_without_an_exchange_until_one_is_wanted(device):
    expected = whole_batch_gradients(3, device)

    def work(group):
        model = DataParallel(make_net(device), group)
        rows = slice(group.rank, None, 2)
        before = group.statistics().calls
        with model.no_sync():
            loss_of(model, rows, device).backward()
            loss_of(model, rows, device).backward()
        assert group.statistics().calls == before
        loss_of(model, rows, device).backward()
        return gradients_of(model)

    results = make_world(2, "arena", device).run(work)

    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-6)


def test_evaluation_makes_no_exchange(device):
    def work(group):
        model = DataParallel(make_net(device), group).eval()
        assert not model.module.training
        before = group.statistics().calls
        if group.rank == 0:
            with torch.no_grad():
                loss_of(model, slice(None), device)
        return group.statistics().calls == before

    assert make_world(2, "arena", device).run(work) == [True, True]


def test_clipping_by_norm_agrees_and_stays_with_each_rank(device):
    def work(group):
        model = DataParallel(make_net(device), group)
        loss_of(model, slice(group.rank, None, 3), device).backward()
        before = gradients_of(model)
        group.barrier()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        group.barrier()
        return norm, before, gradients_of(model)

    results = make_world(3, "arena", device).run(work)

    assert len({norm for norm, _, _ in results}) == 1
    assert len({after.tobytes() for _, _, after in results}) == 1
    norm, before, after = results[0]
    np.testing.assert_allclose(after, before * 0.01 / norm, rtol=1e-3)


def test_autocast_gives_gradients_of_the_parameters_type(device):
    def work(group):
        model = DataParallel(make_net(device), group)
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(model, slice(group.rank, None, 2), device)
        loss.backward()
        assert {each.grad.dtype for each in model.parameters()} == {torch.float32}
        return gradients_of(model).tobytes()

    assert len(set(make_world(2, "arena", device).run(work))) == 1


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("compiles_inside", [True, False])
def test_compiled_modules_train_as_others_do(compiles_inside):
    expected = whole_batch_gradients()

    def work(group):
        if compiles_inside:
            model = DataParallel(torch.compile(make_net(), backend="aot_eager"), group)
            loss_of(model, slice(group.rank, None, 2)).backward()
        else:
            model = DataParallel(make_net(), group)
            loss_of(torch.compile(model, backend="aot_eager"), slice(group.rank, None, 2)).backward()
        return gradients_of(model)

    results = World(2, "arena", processes=True).run(work)  # what compiles is one for all threads of a process

    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-6)


def test_a_model_may_be_moved_and_cast_afterwards(device):
    def work(group):
        model = DataParallel(make_net(), group)
        loss_of(model, slice(group.rank, None, 2)).backward()
        model.to(device, torch.float64)
        model.zero_grad()
        loss_of(model, slice(group.rank, None, 2), device, torch.float64).backward()
        return gradients_of(model).tobytes()

    assert len(set(make_world(2, "arena", device).run(work))) == 1
