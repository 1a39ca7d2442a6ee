"""What the tests of ZeroOptimizer train: a model whose sizes do not divide, with any optimizer, sharded or full."""

import torch

from phalanx.parallel import DataParallel, ZeroOptimizer, digest_weights

STEPS = 30


class Lion(torch.optim.Optimizer):
    """Signs of a moving mean: an element-wise optimizer that torch does not have."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                first, second = group["betas"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(torch.sign(mean * first + parameter.grad * (1 - first)), alpha=group["lr"])
                mean.mul_(second).add_(parameter.grad, alpha=1 - second)


class Scaled(torch.optim.SGD):
    """Divides every gradient by its parameter's norm, as LARS does: it needs whole parameters."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(parameter.norm() + 1)
        return super().step()


BY_BLOCKS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd-plain": (torch.optim.SGD, {"lr": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam-amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2}),
    "adamw-fused": (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    "adamw-foreach": (torch.optim.AdamW, {"lr": 1e-2, "foreach": True}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2}),
    "radam": (torch.optim.RAdam, {"lr": 1e-2}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2}),
    "lion": (Lion, {"lr": 1e-3, "weight_decay": 0.1}),
}
BY_PARAMETERS = {
    "adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
    "scaled": (Scaled, {"lr": 0.1, "momentum": 0.9}),
}


class Model(torch.nn.Module):
    """Parameters of several blocks (577 x 613 elements are two), of less than one, of one element; one is not used."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(31, 613)
        self.middle = torch.nn.Linear(613, 577)
        self.norm = torch.nn.LayerNorm(577)
        self.last = torch.nn.Linear(577, 3)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.unused = torch.nn.Parameter(torch.ones(5))

    def forward(self, inputs):
        hidden = torch.relu(self.middle(torch.relu(self.first(inputs))))
        return self.last(self.norm(hidden)) * self.scale


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return Model().to(dtype)


def make_groups(model):
    """Two groups: matrices, which decay where an optimizer knows how, and the rest at half the rate."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.ndim > 1]},
        {"params": [each for each in parameters if each.ndim <= 1], "lr": 5e-3},
    ]


def batch_of(step, rank, dtype=torch.float32):
    random = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 31, generator=random).to(dtype)


def train(group, kind, settings, *, sharded, clip=0.5, steps=STEPS, **named):
    """The model and the optimizer after some steps."""
    model = DataParallel(make_model(), group)
    groups = make_groups(model)
    optimizer = ZeroOptimizer(groups, kind, group=group, **named, **settings) if sharded else kind(groups, **settings)
    take_steps(model, optimizer, group, range(steps), clip=clip)
    return model, optimizer


def take_steps(model, optimizer, group, steps, *, clip=0.5):
    for step in steps:
        optimizer.zero_grad()
        model(batch_of(step, group.rank)).square().mean().backward()
        if clip:
            model.clip_grad_norm_(clip)
        optimizer.step()


def digest(model):
    return digest_weights(list(model.state_dict().items()))
