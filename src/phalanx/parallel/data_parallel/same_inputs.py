"""Noticing that all ranks train on the same samples, because nobody told the sampler about ranks."""

import warnings
from typing import Any

import torch

from phalanx.buffers import Array
from phalanx.parallel.reduction import fingerprints, hash_words


class InputCheck:
    """Compares the inputs of the first forward pass in training between ranks, in the summary of the first exchange."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._fingerprint = 0
        self._is_over = False

    def note(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # Any: whatever the module takes
        """Remember the tensors that the first forward pass was called with."""
        if self._is_over or self._fingerprint:
            return
        tensors = [each for each in (*inputs, *named.values()) if _is_plain(each)]
        if tensors:
            self._fingerprint = hash_words(str(fingerprints(tensors)).encode())

    def tell(self, seen: Array) -> None:
        """Put this rank's inputs into the summary; ``seen`` has a value for each rank."""
        if not self._is_over:
            seen[self._rank] = self._fingerprint

    def end(self, seen: Array) -> None:
        """Warn, once and on rank 0, if all ranks had the same inputs."""
        is_same = not self._is_over and seen[0] and (seen == seen[0]).all()
        self._is_over = True
        if is_same and self._rank == 0:
            warnings.warn(
                f"all {len(seen)} ranks began with the same inputs, so they train on the same samples: give each its "
                "own, as with DistributedSampler(dataset, num_replicas=group.size, rank=group.rank); the Trainer of "
                "Hugging Face and Lightning do not do so by themselves",
                stacklevel=2,
            )


def _is_plain(value: Any) -> bool:  # Any: whatever the module takes
    """Return whether this is a tensor that has bits in one piece of memory, as all but exotic inputs have."""
    return type(value) is torch.Tensor and value.layout is torch.strided and not torch.is_complex(value)
