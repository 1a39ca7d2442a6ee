"""The norm of gradients as they are now, with the same bits on all ranks, each of which measures a part of them."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from phalanx.buffers import CHUNK, Array, slices, square_norm
from phalanx.group import Group
from phalanx.parallel.reduction import NARROW, Ownership


def measure(parameters: Sequence[torch.nn.Parameter], group: Group, ownership: Ownership) -> float:
    """Return the norm of all gradients; all ranks call this together.

    The owner of a block measures it. What nobody owns is whole on all ranks, and they measure it chunk by chunk.
    """
    chunks = list(_list_chunks(parameters, ownership))
    owners = [number % group.size if owner is None else owner for number, (_, owner) in enumerate(chunks)]
    squares = np.array(
        [
            square_norm(_widen(values)) if owner == group.rank else 0.0
            for (values, _), owner in zip(chunks, owners, strict=True)
        ]
    )
    group.all_reduce(squares)
    return math.sqrt(math.fsum(squares))


def scale(parameters: Sequence[torch.nn.Parameter], factor: float, rank: int, ownership: Ownership) -> None:
    """Multiply all gradients on this rank, of sharded ones only the blocks that it owns."""
    for values, owner in _list_chunks(parameters, ownership):
        if owner in (None, rank):
            values.mul_(factor)


def _list_chunks(
    parameters: Sequence[torch.nn.Parameter], ownership: Ownership
) -> Iterator[tuple[torch.Tensor, int | None]]:
    """Yield the chunks of all gradients, each with its owner, None if it has none."""
    for number, parameter in enumerate(parameters):
        if parameter.grad is None:
            continue
        parameter.grad = parameter.grad.contiguous()
        flat, is_sharded = parameter.grad.view(-1), ownership.has(number)
        for chunk in slices(slice(0, parameter.numel()), CHUNK):
            yield flat[chunk], ownership.owner_at(number, chunk.start) if is_sharded else None


def _widen(values: torch.Tensor) -> Array:
    found = values.detach().cpu()
    wide: Array = (found.float() if found.dtype in NARROW else found).numpy()
    return wide
