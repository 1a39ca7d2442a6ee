"""What the tests of ZeroOptimizer train: a model whose sizes do not divide, with any optimizer, sharded or full."""

import io

import numpy as np
import torch
from spread import DEVICE

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


class Counting(torch.optim.Optimizer):
    """Counts its steps in Python's numbers, as optimizers of many libraries do."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                kept = self.state[parameter]
                kept["step"] = kept.get("step", 0) + 1
                parameter.sub_(parameter.grad * (1 - 0.9 ** kept["step"]), alpha=group["lr"])


BY_BLOCKS["counting"] = (Counting, {"lr": 0.1})
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
    return Model().to(DEVICE, dtype)


def make_small(dtype=torch.float32):
    """A model for what does not depend on blocks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(31, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(DEVICE, dtype)


def make_groups(model):
    """Two groups: matrices, which decay where an optimizer knows how, and the rest at half the rate."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.ndim > 1]},
        {"params": [each for each in parameters if each.ndim <= 1], "lr": 5e-3},
    ]


def batch_of(step, rank, dtype=torch.float32):
    random = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 31, generator=random).to(DEVICE, dtype)


def train(group, kind, settings, *, sharded, clip=0.5, steps=STEPS, **named):
    """The model and the optimizer after some steps."""
    model = DataParallel(make_model(), group)
    groups = make_groups(model)
    optimizer = ZeroOptimizer(groups, kind, group=group, **named, **settings) if sharded else kind(groups, **settings)
    take_steps(model, optimizer, group, range(steps), clip=clip)
    return model, optimizer


def full_and_sharded(group, loop, *, model=make_model, options=None, **named):
    """The weights' digests when ``loop(model, make)`` has trained with full optimizers, and with sharded ones.

    ``make`` takes what torch's optimizers take, AdamW's if it is not told ``kind``; ``named`` is for ZeroOptimizer.
    """

    def make_full(params, kind=torch.optim.AdamW, **settings):
        return kind(params, **settings)

    def make_sharded(params, kind=torch.optim.AdamW, **settings):
        return ZeroOptimizer(params, kind, group=group, **named, **settings)

    found = []
    for make in (make_full, make_sharded):
        wrapped = DataParallel(model().to(DEVICE), group, **(options or {}))
        loop(wrapped, make)
        found.append(digest(wrapped))
    return found


def take_steps(model, optimizer, group, steps, *, clip=0.5):
    for step in steps:
        optimizer.zero_grad()
        model(batch_of(step, group.rank)).square().mean().backward()
        if clip:
            model.clip_grad_norm_(clip)
        optimizer.step()


def tell_all(group, state, root=0):
    """The state that one rank has, on all ranks."""
    file = io.BytesIO()
    torch.save(state, file)
    gathered = group.all_gather_unequal(np.frombuffer(file.getvalue(), np.uint8))
    return torch.load(io.BytesIO(gathered[root].tobytes()))


def find_difference(one, two, where="state"):
    """Where two states differ in a key, a type or a bit; None if they do not."""
    if type(one) is not type(two):
        return f"{where}: {type(one)} and {type(two)}"
    if isinstance(one, dict):
        if one.keys() != two.keys():
            return f"{where}: {sorted(map(str, one))} and {sorted(map(str, two))}"
        found = (find_difference(one[key], two[key], f"{where}[{key!r}]") for key in one)
        return next((each for each in found if each), None)
    if isinstance(one, torch.Tensor):
        is_same = one.dtype == two.dtype and one.shape == two.shape and torch.equal(one.cpu(), two.cpu())
        return None if is_same else where
    if isinstance(one, list):
        return find_difference(dict(enumerate(one)), dict(enumerate(two)), where)
    return None if one == two else f"{where}: {one} and {two}"


def digest(model):
    return digest_weights(list(model.state_dict().items()))
