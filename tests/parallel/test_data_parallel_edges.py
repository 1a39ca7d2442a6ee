"""What else a model may have, and what else may happen: DataParallel does what is expected, or says what is wrong."""

import copy
import warnings
from collections import UserDict
from collections.abc import Mapping

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
    ones,
)

from phalanx.errors import ConfigError
from phalanx.testing import World

torch = pytest.importorskip("torch")
from phalanx.parallel import DataParallel  # noqa: E402 - torch may not be there

nn = torch.nn


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


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
        with pytest.raises(
            ConfigError, match=r"rank 0 has .*rank 2 has .*same model, with the same settings"
        ) as caught:
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
        (nn.Linear(2, 2), {"bucket_bytes": 0}, "at least one byte"),
        (nn.Linear(2, 2, dtype=torch.complex64), {}, "not complex64"),
    ],
)
def test_what_cannot_be_is_refused(net, options, words):
    def work(group):
        with pytest.raises(ConfigError, match=words):
            DataParallel(net, group, **options)

    make_world(2).run(work)


def test_a_norm_over_ranks_that_torch_does_not_know_is_refused():
    def work(group):
        synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.BatchNorm1d(6)))
        if group.size == 1:
            return DataParallel(synced, group)(INPUTS).shape == INPUTS.shape
        with pytest.raises(ConfigError, match="0 is a SyncBatchNorm"):
            DataParallel(synced, group)
        return True

    assert make_world(2).run(work) == [True, True]
    assert make_world(1).run(work) == [True]


def sampled_inputs(group, *, knows_ranks):
    """The inputs of this rank's first step, as a DataLoader gives them."""
    data = torch.utils.data.TensorDataset(INPUTS)
    sampler = torch.utils.data.DistributedSampler(data, group.size, group.rank) if knows_ranks else None
    return next(iter(torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)))[0]


class Nested(nn.Module):
    """A module that takes a batch in any form in which loaders give it."""

    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, inputs):
        while not isinstance(inputs, torch.Tensor):
            inputs = inputs["inputs"] if isinstance(inputs, Mapping) else inputs[-1]
        return self.net(inputs)


SHAPES = {
    "an argument": lambda model, inputs: model(inputs),
    "an argument with a name": lambda model, inputs: model(inputs=inputs),
    "a list": lambda model, inputs: model([inputs]),
    "a dictionary": lambda model, inputs: model({"id": 7, "inputs": inputs}),
    "a mapping": lambda model, inputs: model(UserDict(inputs=inputs)),
    "a tuple in a dictionary": lambda model, inputs: model({"inputs": ("text", inputs)}),
    "without the wrapper": lambda model, inputs: model.module(inputs),
}


@pytest.mark.parametrize("call", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("knows_ranks", [False, True])
def test_the_same_samples_on_all_ranks_are_warned_of_once(knows_ranks, call):
    def work(group):
        model = DataParallel(Nested(), group)
        inputs = sampled_inputs(group, knows_ranks=knows_ranks)
        for _ in range(2):
            call(model, inputs).sum().backward()
            model.zero_grad()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_world(3).run(work)

    words = [str(each.message) for each in caught]
    assert len(words) == (0 if knows_ranks else 1)
    assert all("all 3 ranks began with the same inputs" in each for each in words)


def test_a_module_that_takes_no_hooks_is_trained_and_its_inputs_are_not_compared():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = [torch.jit.script(nn.Linear(6, 1)) for _ in range(2)]

    def work(group):
        model = DataParallel(scripted[group.rank], group)
        model(INPUTS).sum().backward()
        return gradients_of(model)

    first, second = make_world(2).run(work)

    np.testing.assert_array_equal(first, second)


def test_inputs_that_are_only_evaluated_or_have_no_plain_bits_are_not_compared():
    class Sparse(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.to_dense().real)

    def work(group):
        model = DataParallel(Sparse(6, 1), group)
        with torch.no_grad():
            model(INPUTS)
        model.eval()(INPUTS)
        model.train()(INPUTS.to_sparse()).sum().backward()
        model.zero_grad()
        model(INPUTS.to(torch.complex64)).sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_world(2).run(work)


def test_a_rank_that_only_follows_the_others_has_no_inputs_to_compare():
    def work(group):
        model = DataParallel(make_net(), group)
        with model.join():
            for _ in range(0 if group.rank == 1 else 2):
                model(INPUTS[:4]).sum().backward()
                model.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_world(3).run(work)


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
        model = DataParallel(net, group, bucket_bytes=1)
        ((net[2] * net[1]).sum() * group.rank + net[0].sum()).backward()
        assert net[1].grad is None
        del model  # whose hooks would be gone before
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


class Late(torch.autograd.Function):
    """Lets backward go on only when the first bucket has been exchanged."""

    @staticmethod
    def forward(context, x, model):
        context.model = model
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.model._reducer._pending[2].wait(10)  # behind the counts and the staging
        return gradient, None


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_a_gradient_whose_memory_backward_still_uses_is_only_read(over):
    """With a batch of one, autograd gives a parameter the very memory that flows on to the layers before it."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.shift = nn.ParameterList([nn.Parameter(torch.zeros(6))])  # the last, and so in the first bucket

        def forward(self, x, model=None):
            before = self.first(x)
            return (before if model is None else Late.apply(before, model)) + self.shift[0].unsqueeze(0)

    torch.manual_seed(1)
    net = Shifted()
    expected = [torch.autograd.grad(net(INPUTS[n : n + 1]).square().sum(), net.parameters()) for n in range(2)]

    def work(group):
        model = DataParallel(copy.deepcopy(net), group, bucket_bytes=8)
        model.weigh(group.rank + 1)
        model(INPUTS[group.rank : group.rank + 1], model).square().sum().backward()
        for parameter, one, two in zip(model.parameters(), *expected, strict=True):
            torch.testing.assert_close(parameter.grad, (one + 2 * two) / 3)

    World(2, over).run(work)
