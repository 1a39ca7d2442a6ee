"""Starting with equal models: comparing models between ranks, and copying tensors from one rank to all."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array
from phalanx.errors import ConfigError

_BATCH_BYTES = 4 << 20
_NOTHING = "nothing more"


class Ranks(Protocol):
    """Ranks that can begin alike. A ``Group`` and a ``TorchExchange`` are some."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    def all_gather(self, array: Array) -> Array:
        """Return the arrays of all ranks, stacked by rank."""

    def all_gather_unequal(self, array: Array) -> list[Array]:
        """Return a list of the arrays of all ranks, which may differ in length."""

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Make every rank's array equal to the root's."""


def compare(named: Iterable[tuple[str, torch.Tensor]], group: Ranks, *settings: str) -> None:
    """Check that all ranks have tensors of the same names, shapes and types, and the same ``settings``.

    If not, all ranks raise the same ``ConfigError``, which names the first difference and both ranks.
    """
    lines = [*settings, *(_describe(name, tensor) for name, tensor in named)]
    text = np.frombuffer("\n".join(lines).encode(), np.uint8)
    digests = group.all_gather(np.frombuffer(hashlib.blake2b(text.tobytes(), digest_size=32).digest(), np.uint8))
    odd = [rank for rank, digest in enumerate(digests) if (digest != digests[0]).any()]
    if not odd:
        return
    texts = [each.tobytes().decode().split("\n") for each in group.all_gather_unequal(text)]
    pairs = zip_longest(texts[0], texts[odd[0]], fillvalue=_NOTHING)
    first, other = next((ours, theirs) for ours, theirs in pairs if ours != theirs)
    raise ConfigError(
        f"the ranks differ: rank 0 has {first}, where rank {odd[0]} has {other}: make the same model, with the same "
        "settings, everywhere"
    )


def refuse_synced_norms(model: torch.nn.Module) -> None:
    """Raise ConfigError if the model has a SyncBatchNorm, which would only see the samples of one rank or lane."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise ConfigError(
                f"{name or 'the model'} is a SyncBatchNorm, whose statistics would not cover the samples of other "
                "ranks here: use GroupNorm or LayerNorm, or BatchNorm if statistics of each rank's own samples will do"
            )


def broadcast(tensors: Iterable[torch.Tensor], group: Ranks, root: int = 0) -> None:
    """Copy the tensors of the ``root`` to all ranks. They may have any type and be on any device."""
    for batch in _batches(tensors):
        flat = torch.cat([each.reshape(-1) for each in batch]).cpu()
        group.broadcast(flat.view(torch.uint8).numpy(), root)
        if group.rank != root:
            for tensor, content in zip(batch, flat.split([each.numel() for each in batch]), strict=True):
                tensor.copy_(content.view(tensor.shape))


def _describe(name: str, tensor: torch.Tensor) -> str:
    kind = "buffer"
    if isinstance(tensor, torch.nn.Parameter):
        kind = "parameter" if tensor.requires_grad else "frozen parameter"
    return f"{kind} {name} of {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _batches(tensors: Iterable[torch.Tensor]) -> Iterable[Sequence[torch.Tensor]]:
    """Yield batches of tensors of one type and device, a few megabytes each, so that small tensors share a call."""
    alike: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        content = tensor.data  # not detach(): autograd must not notice that the values change
        batch = alike.setdefault((content.dtype, content.device), [])
        batch.append(content)
        if sum(each.nbytes for each in batch) >= _BATCH_BYTES:
            yield alike.pop((content.dtype, content.device))
    yield from alike.values()
