"""What an engine checks and decides before it can take steps."""

from collections.abc import Sequence

import torch

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.engine.holders import Holding, share_state
from phalanx.parallel.optimizer import Leaves
from phalanx.parallel.reduction import (
    Exchange,
    Layout,
    ParameterSpec,
    arrange,
    broadcast,
    compare,
    lay_out,
)

_BUCKET_BYTES = 8 << 20


def lanes_of(exchange: Exchange) -> int:
    """Return the number of lanes. A group without lanes is a ConfigError."""
    if exchange.lanes is None:
        raise ConfigError("an engine takes steps in lanes: join the group with phalanx.connect(lanes=8), for example")
    return exchange.lanes


def list_trained(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters to train, by name. There must be some, and all must be f32."""
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not named:
        raise ConfigError("this model has no parameters to train: set requires_grad on some")
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"{name} is {parameter.dtype}: an engine trains f32 weights; use torch.autocast in the loss"
            )
    return named


def begin_alike(model: torch.nn.Module, group: Group) -> None:
    """Check that all ranks have the same model, and give them the weights of rank 0."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    compare(tensors, group)
    broadcast([tensor for _, tensor in tensors], group)


def lay_out_model(
    named: Sequence[tuple[str, torch.nn.Parameter]],
    buffers: Sequence[ParameterSpec],
    buckets: Sequence[Sequence[str]] | None,
    *,
    is_sharded: bool,
) -> Layout:
    """Return which parameter and which buffer goes into which bucket, by ``buckets`` or by size."""
    specs = [ParameterSpec(name, parameter.numel(), is_sharded=is_sharded) for name, parameter in named]
    if buckets is None:
        return lay_out([*specs, *buffers], _BUCKET_BYTES)
    numbers = {name: number for number, (name, _) in enumerate(named)}
    filled = [[numbers[name] for name in names if name in numbers] for names in buckets]
    last = [range(len(specs), len(specs) + len(buffers))] if buffers else []
    return arrange([*specs, *buffers], [*filled, *last])


def share_out(exchange: Exchange, leaves: Leaves, *, is_sharing: bool) -> Holding:
    """Return which ranks of a fixed group hold the optimizer state of which leaves: all of them, or one each."""
    if not is_sharing or exchange.size == 1:
        return Holding((tuple(range(exchange.size)),) * len(leaves.leaves))
    if not isinstance(exchange, Group):
        raise ConfigError(
            "workers that only reach a gradient server cannot share an optimizer: leave zero out, or connect them"
        )
    everything = range(len(leaves.leaves))
    return share_state(leaves.sizes, [everything] * exchange.size, exchange.hosts, redundancy=1)
