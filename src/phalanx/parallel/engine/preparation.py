"""What an engine checks and decides before it can take steps."""

from collections.abc import Sequence

import torch

from phalanx.elastic import Holding, share_state
from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.optimizer import Leaves
from phalanx.parallel.reduction import (
    BLOCK,
    BUCKET_BYTES,
    GPU_BLOCK,
    GPU_BUCKET_BYTES,
    Exchange,
    Layout,
    ParameterSpec,
    TorchExchange,
    arrange,
    broadcast,
    compare,
    is_staged,
    lay_out,
)

_TRAINED = (torch.float32, torch.bfloat16)


def lanes_of(exchange: Exchange) -> int:
    """Return the number of lanes. A group without lanes is a ConfigError."""
    if exchange.lanes is None:
        raise ConfigError("an engine takes steps in lanes: join the group with phalanx.connect(lanes=8), for example")
    return exchange.lanes


def list_trained(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters to train, by name. There must be some, and all must be f32, or all bf16."""
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not named:
        raise ConfigError("this model has no parameters to train: set requires_grad on some")
    first, kind = named[0][0], named[0][1].dtype
    for name, parameter in named:
        if parameter.dtype not in _TRAINED:
            raise ConfigError(
                f"{name} is {_word(parameter.dtype)}: an engine trains f32 or bf16 weights; use torch.autocast in the "
                "loss"
            )
        if parameter.dtype != kind:
            raise ConfigError(
                f"{name} is {_word(parameter.dtype)}, and {first} is {_word(kind)}: an engine trains weights of one "
                "type; convert the whole model"
            )
    return named


def begin_alike(model: torch.nn.Module, ranks: Group | TorchExchange) -> None:
    """Check that all ranks have the same model, and give them the weights of rank 0."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    compare(tensors, ranks)
    broadcast([tensor for _, tensor in tensors], ranks)


def lay_out_model(
    named: Sequence[tuple[str, torch.nn.Parameter]],
    buffers: Sequence[ParameterSpec],
    buckets: Sequence[Sequence[str]] | None,
    *,
    is_sharded: bool,
) -> Layout:
    """Return which parameter and which buffer goes into which bucket, by ``buckets`` or by size."""
    specs = [ParameterSpec(name, parameter.numel(), is_sharded=is_sharded) for name, parameter in named]
    is_on_gpu = is_staged(named[0][1].device)
    block = GPU_BLOCK if is_on_gpu else BLOCK
    if buckets is None:
        return lay_out([*specs, *buffers], GPU_BUCKET_BYTES if is_on_gpu else BUCKET_BYTES, block)
    numbers = {name: number for number, (name, _) in enumerate(named)}
    filled = [[numbers[name] for name in names if name in numbers] for names in buckets]
    last = [range(len(specs), len(specs) + len(buffers))] if buffers else []
    return arrange([*specs, *buffers], [*filled, *last], block)


def share_out(exchange: Exchange, leaves: Leaves, *, is_sharing: bool) -> Holding:
    """Return which ranks of a fixed group hold the optimizer state of which leaves: all of them, or one each."""
    if not is_sharing or exchange.size == 1:
        return Holding((tuple(range(exchange.size)),) * len(leaves.leaves))
    if not isinstance(exchange, Group):
        raise ConfigError(
            "only ranks of our own transports can share an optimizer: leave zero out, or use phalanx.connect()"
        )
    everything = range(len(leaves.leaves))
    return share_state(leaves.sizes, [everything] * exchange.size, exchange.hosts, redundancy=1)


def _word(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
