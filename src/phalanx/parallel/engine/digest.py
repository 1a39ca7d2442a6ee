"""Digests of weights, buffers and optimizer state, by which ranks and runs notice that theirs differ."""

import hashlib
from collections.abc import Sequence

import torch

from phalanx.buffers import Array
from phalanx.errors import WeightsDiverged
from phalanx.parallel.optimizer import Kept, Leaf, to_tensor
from phalanx.parallel.reduction import fingerprints, hash_words
from phalanx.wire import odd_one_out


def fingerprint_state(kept: Kept, leaves: Sequence[Leaf]) -> list[int]:
    """Return a fingerprint of the optimizer state of each leaf; 0 for a leaf that has none here."""
    entries = [(number, key, value) for number, leaf in enumerate(leaves) for key, value in _state_of(kept, leaf)]
    prints = fingerprints([value for _, _, value in entries])
    words = [""] * len(leaves)
    for (number, key, _), found in zip(entries, prints, strict=True):
        words[number] += f"{key} {found},"
    return [hash_words(each.encode()) if each else 0 for each in words]


def join(prints: Sequence[int]) -> bytes:
    """Return 16 bytes that are equal if all fingerprints are."""
    return hashlib.blake2b(",".join(map(str, prints)).encode(), digest_size=16).digest()


def diverged(step: int, names: Sequence[str], prints: Array) -> WeightsDiverged:
    """Return the error for fingerprints that differ. ``prints`` has a row for each rank and a column for each name."""
    odd = odd_one_out({rank: tuple(row) for rank, row in enumerate(prints.tolist())})
    assert odd, "called because they differ"
    rank, other = odd
    name = next(each for each, one, two in zip(names, prints[rank], prints[other], strict=True) if one != two)
    return WeightsDiverged(
        f"rank {rank} has other weights than rank {other} in {name} before step {step}: start again from a "
        f"checkpoint from before this difference, and look at "
        f"{f'the machine of rank {rank}' if len(prints) > 2 else 'both machines'}",
        step=step,
        rank=rank,
        parameter=name,
    )


def digest_weights(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Return a hash of named weights: equal bits give an equal hash, on any device."""
    whole = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda each: each[0]):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        whole.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def _state_of(kept: Kept, leaf: Leaf) -> list[tuple[str, torch.Tensor]]:
    return [(key, to_tensor(value)) for key, value in sorted(kept.get(leaf.block, {}).items()) if value is not None]
