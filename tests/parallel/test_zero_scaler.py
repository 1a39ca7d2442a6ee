"""GradScaler over a ZeroOptimizer: the same scales and skipped steps on all ranks, and the full optimizer's bits."""

import itertools

import pytest
import torch
from spread import DEVICE, of_all, spread
from zero_play import batch_of, digest, make_model, make_small

from phalanx.errors import ConfigError
from phalanx.parallel import DataParallel, ZeroOptimizer

STEPS = 5
SPOILT = 2


def make_optimizer(parameters, group, *, sharded):
    if sharded:
        return ZeroOptimizer(parameters, torch.optim.AdamW, group=group, lr=1e-2)
    return torch.optim.AdamW(parameters, lr=1e-2)


def train(group, *, sharded, unscales, spoils, make=make_model):
    """The digest, the scales, and how often the weights stayed as they were."""
    model = DataParallel(make(), group, allow_non_finite=True)
    optimizer = make_optimizer(model.parameters(), group, sharded=sharded)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=3)
    scales, digests = [], [digest(model)]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch_of(step, group.rank)).square().mean()
        if spoils(group.rank, step):
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            model.clip_grad_norm_(0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        digests.append(digest(model))
    skipped = sum(one == two for one, two in itertools.pairwise(digests))
    return digests[-1], scales, skipped


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_scaled_losses_give_the_weights_of_the_full_optimizer(unscales, size):
    def work(group):
        return [train(group, sharded=each, unscales=unscales, spoils=lambda *_: False) for each in (False, True)]

    full, shared = of_all(spread(size, work))

    assert shared == full
    assert full[1:] == [[1024.0, 1024.0, 2048.0, 2048.0, 2048.0], 0]


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("culprit", [0, 1])
def test_an_overflow_on_one_rank_makes_all_skip_the_step(unscales, culprit):
    def spoils(rank, step):
        return rank == culprit and step == SPOILT

    def work(group):
        return [train(group, sharded=each, unscales=unscales, spoils=spoils) for each in (False, True)]

    full, shared = of_all(spread(2, work))

    assert shared == full
    assert full[1:] == [[1024.0, 1024.0, 512.0, 512.0, 512.0], 1]


class Pair(torch.nn.Module):
    """Two vectors, of which each rank owns one."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(3))
        self.two = torch.nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        return self.one.sum() * inputs.sum(), self.two.sum()


@pytest.mark.parametrize("spoilt", [0, 1])
@pytest.mark.parametrize("culprit", [0, 1])
def test_an_overflow_stops_only_the_optimizer_whose_gradient_it_is(spoilt, culprit):
    def run(group, *, sharded):
        model = DataParallel(Pair().to(DEVICE), group, allow_non_finite=True)
        optimizers = [make_optimizer([each], group, sharded=sharded) for each in model.parameters()]
        scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
        for step in range(2):
            losses = list(model(batch_of(step, group.rank)))
            if step == 1 and group.rank == culprit:
                losses[spoilt] = losses[spoilt] * torch.inf
            scaler.scale(sum(losses)).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
        return [each.tolist() for each in model.parameters()], scaler.get_scale()

    full, shared = of_all(spread(2, lambda group: [run(group, sharded=each) for each in (False, True)]))

    assert shared == full
    assert full[1] == 2.0


def test_a_gradient_that_is_changed_besides_is_refused():
    def work(group):
        model = DataParallel(make_small(), group)
        optimizer = make_optimizer(model.parameters(), group, sharded=True)
        scaler = torch.amp.GradScaler(DEVICE)
        scaler.scale(model(batch_of(0, group.rank)).mean()).backward()
        scaler.unscale_(optimizer)
        model.module[0].weight.grad.mul_(2)
        with pytest.raises(ConfigError, match=r"0\.weight was changed after backward"):
            scaler.step(optimizer)

    spread(2, work)
