"""What is in a checkpoint: the list of its tensors, and faults that any checkpoint can have."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from phalanx.checkpoint.labels import parse_label
from phalanx.checkpoint.shard_files import Tensors, collect_spans, find_misfit, unite
from phalanx.checkpoint.tensor_file import TENSORS

Sets = Mapping[str, Mapping[str, Tensors]]
"""The tensors of a checkpoint, by set and then by file."""


class TensorLook(NamedTuple):
    """The shape and the type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


def list_tensors(sets: Sets) -> dict[str, dict[str, str]]:
    """Return the type and the shape of all tensors in words, by set and name; the spans of a label as one."""
    listed = {}
    for name, shards in sets.items():
        looks = look_at(unite(shards))
        if name + TENSORS not in shards:
            looks = without_spans(looks) | {
                str(label): TensorLook((spans[-1].stop,), spans[0].values.dtype)
                for label, spans in collect_spans(unite(shards)).items()
            }
        listed[name] = {text: str(looks[text]) for text in sorted(looks)}
    return listed


def find_misfits(sets: Sets) -> Iterator[str]:
    """Yield what is wrong with the shards of a checkpoint."""
    model = unite(sets.get("model", {}))
    for name, shards in sets.items():
        is_whole = name + TENSORS in shards
        if is_whole and len(shards) > 1:
            yield f"{name} is stored both whole and in shards"
        elif not is_whole and (misfit := find_misfit(shards, model)):
            yield misfit


def find_changes(sets: Sets, saved: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield how the tensors of a checkpoint differ from the list of those that were saved."""
    found = list_tensors(sets)
    yield from compare_names(found, sorted(saved))
    for name, tensors in saved.items():
        yield from compare_looks(found[name], tensors)


def look_at(tensors: Tensors) -> dict[str, TensorLook]:
    """Return shape and type of tensors by name."""
    return {name: TensorLook(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def without_spans(looks: Mapping[str, TensorLook]) -> dict[str, TensorLook]:
    """Return the looks of the tensors that are whole."""
    return {text: look for text, look in looks.items() if not parse_label(text).span}


def compare_names(sets: Mapping[str, object], expected: Sequence[str]) -> Iterator[str]:
    """Yield how the names of sets differ from those expected, which are sorted."""
    if sorted(sets) != list(expected):
        yield f"it has {' and '.join(sorted(sets)) or 'nothing'} instead of {' and '.join(expected) or 'nothing'}"


def compare_looks(found: Mapping[str, object], expected: Mapping[str, object]) -> Iterator[str]:
    """Yield how tensors of a set differ from those expected."""
    for name, look in expected.items():
        if name not in found:
            yield f"{name} is missing"
        elif found[name] != look:
            yield f"{name} is {found[name]} instead of {look}"
    for name in found.keys() - expected.keys():
        yield f"it has {name}, which does not belong there"
