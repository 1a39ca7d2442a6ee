"""Noticing that all ranks train on the same samples, because nobody told the sampler about ranks."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from phalanx.buffers import Array
from phalanx.parallel.reduction import fingerprints, hash_words


class InputCheck:
    """Compares the inputs of the first forward pass in training between ranks, in the summary of the first exchange."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._fingerprint = 0
        self._is_over = False

    def watch(self, module: nn.Module) -> list[Any]:  # Any: torch is untyped
        """Return the hooks by which the module tells its inputs, also if it is called without its ``DataParallel``."""
        if self._is_over or isinstance(module, torch.jit.ScriptModule):  # which takes no hook
            return []
        return [module.register_forward_pre_hook(self._note, with_kwargs=True)]

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
                f"all {len(seen)} ranks began with the same inputs, so they seem to train on the same samples: give "
                "each its own, as with phalanx.data.RankSampler(dataset, group); the Trainer of Hugging Face and "
                "Lightning do not do so by themselves",
                stacklevel=2,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "InputCheck":  # Any: as copy's
        """Return one that compares nothing: a copy of the module trains alone."""
        made = InputCheck(self._rank)
        made._is_over = True
        return made

    def _note(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # Any: what it takes
        """Remember the tensors that the first forward pass was called with."""
        if torch.compiler.is_compiling() or self._is_over or self._fingerprint:
            return
        if module.training and torch.is_grad_enabled() and (tensors := list(_find_tensors((inputs, named)))):
            self._fingerprint = hash_words(str(fingerprints(tensors)).encode())


def _find_tensors(value: Any) -> Iterator[torch.Tensor]:  # Any: whatever the module takes
    """Yield the tensors in a value that have bits in one piece of memory, as all but exotic inputs have."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _find_tensors(each)
    elif type(value) is torch.Tensor and value.layout is torch.strided and not torch.is_complex(value):
        yield value
