"""Scripts written for torch's DistributedDataParallel bring their habits along."""

import copy
from collections import OrderedDict

import pytest
from data_parallel_play import content, loss_of, make_net, make_world

from phalanx.errors import ConfigError

torch = pytest.importorskip("torch")
from phalanx.parallel import DataParallel  # noqa: E402 - torch may not be there


def test_arguments_that_make_no_difference_are_ignored():
    def work(group):
        model = DataParallel(make_net(), group, device_ids=[0], output_device=0, find_unused_parameters=True)
        return DataParallel(model.module, group, static_graph=True, bucket_cap_mb=25, broadcast_buffers=True).group

    assert all(make_world(2).run(work))


def test_an_argument_that_would_make_a_difference_is_refused():
    def work(group):
        with pytest.raises(ConfigError, match=r"DataParallel has no argument mixed_precision.*device_ids"):
            DataParallel(make_net(), group, mixed_precision=object())

    make_world(1).run(work)


def test_a_checkpoint_of_ddp_is_loaded():
    def work(group):
        net = make_net()
        model = DataParallel(net, group)
        state = OrderedDict((f"module.{name}", torch.ones_like(each)) for name, each in net.state_dict().items())
        state._metadata = OrderedDict({"": {"version": 1}, "module": {"version": 1}})

        model.load_state_dict(state)
        model.load_state_dict(state_dict=state, strict=True)

        assert all(name.startswith("module.") for name in state)  # it is left as it was
        return all(bool((each == 1).all()) for each in [*model.parameters(), *model.buffers()])

    assert make_world(2).run(work) == [True, True]


class Wrapper(torch.nn.Module):
    """A module whose own names begin as those of DDP do."""

    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(2, 2)


def test_a_module_whose_own_names_have_the_prefix_keeps_them():
    def work(group):
        model = DataParallel(Wrapper(), group)
        state = {name: torch.ones_like(each) for name, each in model.state_dict().items()}
        assert list(state) == ["module.weight", "module.bias"]

        model.load_state_dict(state)
        model.load_state_dict({f"module.{name}": each for name, each in state.items()})

        return bool((model.module.module.weight == 1).all())

    assert make_world(1).run(work) == [True]


def test_a_copy_is_the_plain_module_and_trains_alone():
    def work(group):
        model = DataParallel(make_net(), group)
        before = content(model.parameters())

        copied = copy.deepcopy(model)

        assert type(copied) is type(model.module)
        if group.rank == 0:
            loss_of(copied, slice(0, 4)).backward()  # on this rank only, so an exchange would wait for ever
            torch.optim.SGD(copied.parameters(), lr=1.0).step()
        return content(model.parameters()) == before, content(copied.parameters()) == before

    assert make_world(2).run(work) == [(True, False), (True, True)]


def test_torchs_average_of_weights_follows_a_data_parallel():
    def work(group):
        model = DataParallel(torch.nn.Linear(2, 1), group)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        )
        average.update_parameters(model)
        with torch.no_grad():
            model.module.weight.add_(2.0)
        average.update_parameters(model)
        return bool(torch.allclose(average.module.weight, model.module.weight - 1.0))

    assert make_world(2).run(work) == [True, True]
