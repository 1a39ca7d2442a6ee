"""The norm of all gradients, with the same bits on all ranks, each of which measures a part of them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from phalanx.buffers import Array, runs, square_norm
from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.flat import CUT
from phalanx.parallel.shards import Ownership
from phalanx.parallel.slots import NARROW


class _Cut(NamedTuple):
    """Some elements of a gradient, and what this rank does with them."""

    values: torch.Tensor
    is_measured: bool
    is_scaled: bool


def clip(parameters: Sequence[torch.nn.Parameter], max_norm: float, group: Group, ownership: Ownership) -> float:
    """The norm of all gradients, before they are scaled down to ``max_norm`` if it is larger.

    Who owns a piece measures and scales it. What nobody owns is whole on all ranks: they take turns to measure it.
    """
    if not max_norm > 0:
        raise ConfigError(f"a norm is clipped to more than 0, not to {max_norm}")
    cuts = list(_cut(parameters, group, ownership))
    squares = np.array([square_norm(_widen(cut.values)) if cut.is_measured else 0.0 for cut in cuts])
    group.all_reduce(squares)
    norm = math.sqrt(math.fsum(squares))
    factor = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_ has it
    if factor < 1:
        for cut in cuts:
            if cut.is_scaled:
                cut.values.mul_(factor)
    return norm


def _cut(parameters: Sequence[torch.nn.Parameter], group: Group, ownership: Ownership) -> Iterator[_Cut]:
    turn = 0
    for entry, parameter in enumerate(parameters):
        if parameter.grad is None:
            continue
        parameter.grad = parameter.grad.contiguous()
        flat, is_sharded = parameter.grad.view(-1), ownership.has(entry)
        for cut in runs(slice(0, parameter.numel()), CUT):
            owner = ownership.owner_at(entry, cut.start) if is_sharded else turn % group.size
            yield _Cut(flat[cut], owner == group.rank, owner == group.rank or not is_sharded)
            turn += 1


def _widen(values: torch.Tensor) -> Array:
    found = values.detach().cpu()
    wide: Array = (found.float() if found.dtype in NARROW else found).numpy()
    return wide
