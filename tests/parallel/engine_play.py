"""What the tests of the engine train, and how they look at what came of it."""

import torch
from spread import DEVICE, of_all, spread

from phalanx.parallel import Engine, digest_weights

LANES = 8
WIDTH = 12


class Toy(torch.nn.Module):
    """Dropout, a BatchNorm, a parameter that some lanes use and one that nobody uses."""

    def __init__(self, hidden=40):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden)
        self.drop = torch.nn.Dropout(0.2)
        self.sometimes = torch.nn.Parameter(torch.ones(hidden))
        self.never = torch.nn.Parameter(torch.ones(3))
        self.last = torch.nn.Linear(hidden, 1)

    def forward(self, x, uses_sometimes):
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(hidden * self.sometimes if uses_sometimes else hidden)


def loss(model, batch):
    x, y, lane = batch
    return torch.nn.functional.mse_loss(model(x, lane % 3 == 0), y)


def weighted_loss(model, batch):
    mean = loss(model, batch)
    return mean * len(batch[0]), len(batch[0])


def batches_of(step, micro=1, size=4):
    def batches(lane):
        generator = torch.Generator().manual_seed(1000 * step + lane)
        x = torch.randn(micro, size, WIDTH, generator=generator)
        return [(each, each.sum(1, keepdim=True), lane) for each in x.to(DEVICE)]

    return batches


def make_engine(group, *, seed=7, optimizer=torch.optim.AdamW, loss=loss, model=Toy, **options):
    torch.manual_seed(seed)
    return Engine(
        model().to(DEVICE), loss, lambda leaves: optimizer([leaf.block for leaf in leaves], lr=0.01), group, **options
    )


def train(engine, steps, micro=1):
    return [engine.step(batches_of(engine.step_number, micro)) for _ in range(steps)]


def run(size, over="arena", steps=6, micro=1, **options):
    """What every rank saw and ended with: losses, norms, weights and buffers, bit for bit."""

    def work(group):
        engine = make_engine(group, **options)
        reports = train(engine, steps, micro)
        return f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    return of_all(spread(size, work, over))


def digest_of(engine):
    return digest_weights(list(engine.model.state_dict().items()))
