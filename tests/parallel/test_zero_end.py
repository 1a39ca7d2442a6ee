"""When the group is left, or a rank is killed: the model stays usable, and nobody waits for ever."""

import copy
import io
import os
import signal
import threading

import pytest
import torch
from data_parallel_play import needs_fork
from spread import spread
from zero_play import batch_of, digest, make_model, make_small, take_steps

from phalanx.errors import PeerLost
from phalanx.parallel import DataParallel, ZeroOptimizer, digest_weights
from phalanx.testing import World

# Ranks are threads here, if what they leave behind is looked at; torch's random state is theirs in common.
MAKING = threading.Lock()


def make_alone(make):
    with MAKING:
        return make()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("over", ["arena", "tcp", "memory"])
def test_a_model_is_readable_and_trainable_alone_when_the_group_is_left(over, overlap):
    models, digests = {}, {}

    def work(group):
        model = models[group.rank] = DataParallel(make_alone(make_small), group)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group, overlap=overlap)
        take_steps(model, optimizer, group, range(2))
        digests[group.rank] = digest(model)

    World(2, over).run(work)

    for rank, model in models.items():
        assert digest(model) == digests[0]
        alone = copy.deepcopy(model.module)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]
        with model.no_sync():
            model.zero_grad()
            model(batch_of(0, rank)).square().mean().backward()
        alone(batch_of(0, rank)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        assert digest(model) == digest(alone) != digests[0]


@pytest.mark.parametrize("over", ["arena", "tcp"])
def test_who_leaves_a_group_gets_the_last_weights_first(over):
    def train(*, overlap):
        models = {}

        def work(group):
            model = models[group.rank] = DataParallel(make_alone(make_small), group)
            optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group, overlap=overlap)
            take_steps(model, optimizer, group, range(2))

        World(2, over).run(work)
        return [digest_weights(list(models[rank].module.named_parameters())) for rank in range(2)]

    assert train(overlap=True) == train(overlap=False)


def test_a_model_can_be_copied_and_saved_and_the_copy_goes_its_own_way():
    def work(group):
        model = DataParallel(make_model(), group)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group, overlap=True)
        take_steps(model, optimizer, group, range(2))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        optimizer.wait()
        twin = copy.deepcopy(model.module)
        before = digest(model)
        take_steps(model, optimizer, group, [2])
        loaded = make_model()
        loaded.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
        twin(batch_of(0, 0)).mean().backward()
        assert file.tell() < 2 * sum(each.nbytes for each in loaded.parameters())  # not all of the group's memory
        return digest(loaded) == digest(twin) == before != digest(model)

    assert spread(2, work) == [True, True]


def die_in(place, model, optimizer):
    """Kill this process when the first gradient is there, or when it has updated its own part."""

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if place == "backward":
        model.module.last.bias.register_hook(die)
    else:
        optimizer._optimizer.register_step_post_hook(die)


@needs_fork
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("place", ["step", "backward"])
@pytest.mark.parametrize("over", ["arena", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_is_named_on_all_others(over, place, overlap):
    def work(group):
        model = DataParallel(make_model(), group)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, group=group, overlap=overlap)
        take_steps(model, optimizer, group, range(2))
        if group.rank == 1:
            die_in(place, model, optimizer)
        with pytest.raises(PeerLost, match="rank 1") as caught:
            take_steps(model, optimizer, group, range(2, 10))
        return caught.value.peer

    outcomes = World(3, over, processes=True).start(work).outcomes()

    assert [each.unwrap() for each in outcomes] == [1, 1]
