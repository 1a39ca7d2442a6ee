"""How much is in a checkpoint."""

from pathlib import Path

import msgspec
import torch

from phalanx.checkpoint import Tensors, list_shards, parse_label, unite
from phalanx.train.checkpoint.store import read_chosen


class Amount(msgspec.Struct, frozen=True):
    """The size of some tensors."""

    tensors: int
    elements: int
    bytes: int


class Description(msgspec.Struct, frozen=True):
    """How much is in a checkpoint, by file and by key of the optimizer's state."""

    step: int
    workers: int
    """How many workers wrote it: as many as there are shards, or one."""
    files: dict[str, Amount]
    """Each file, with its bytes on the disk."""
    parameters: Amount
    state: dict[str, Amount]
    """The optimizer's state by key. The shards of one parameter count as one tensor."""


def describe_checkpoint(path: Path) -> Description:
    """Return how much is in a checkpoint, which must be complete."""
    manifest, _, sets = read_chosen(path)
    return Description(
        step=manifest.step,
        workers=max((shard.size for shard in list_shards(manifest.files)), default=1),
        files={
            file: msgspec.structs.replace(_count(tensors), bytes=manifest.files[file].size_bytes)
            for shards in sets.values()
            for file, tensors in shards.items()
        },
        parameters=_count(unite(sets.get("model", {}))),
        state=_count_state(unite(sets.get("optimizer", {}))),
    )


def _count_state(state: Tensors) -> dict[str, Amount]:
    by_key: dict[str, dict[str, torch.Tensor]] = {}
    for text, tensor in state.items():
        by_key.setdefault(parse_label(text).key, {})[text] = tensor
    return {
        key: msgspec.structs.replace(_count(tensors), tensors=len({parse_label(text).name for text in tensors}))
        for key, tensors in sorted(by_key.items())
    }


def _count(tensors: Tensors) -> Amount:
    return Amount(
        tensors=len(tensors),
        elements=sum(tensor.numel() for tensor in tensors.values()),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
    )
