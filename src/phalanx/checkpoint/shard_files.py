"""The files of a set of shards: their names, and checks that the shards fit together."""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch

from phalanx.checkpoint.labels import Label, parse_label
from phalanx.checkpoint.tensor_file import TENSORS

_SHARD = re.compile(r"(.+)\.([0-9]{1,9})-of-([0-9]{1,9})" + re.escape(TENSORS))

Tensors = Mapping[str, torch.Tensor]


class ShardFile(NamedTuple):
    """The file with the shard of set ``name`` that rank ``rank`` of ``size`` wrote."""

    name: str
    rank: int
    size: int

    def __str__(self) -> str:
        return f"{self.name}.{self.rank}-of-{self.size}{TENSORS}"


def list_shards(files: Iterable[str]) -> list[ShardFile]:
    """Return the files that hold shards, by their names."""
    matches = (_SHARD.fullmatch(file) for file in files)
    return [ShardFile(matched[1], int(matched[2]), int(matched[3])) for matched in matches if matched]


class Span(NamedTuple):
    """A range of the state that an optimizer keeps for each element of a parameter."""

    start: int
    stop: int
    values: torch.Tensor


def collect_spans(state: Tensors) -> dict[Label, list[Span]]:
    """Return the state that is kept in spans, by label without the span, in the order of elements."""
    found: dict[Label, list[Span]] = {}
    for text, tensor in state.items():
        label = parse_label(text)
        if label.span:
            found.setdefault(label._replace(span=None), []).append(Span(*label.span, tensor))
    return {label: sorted(spans, key=lambda span: span[:2]) for label, spans in found.items()}


def unite(shards: Mapping[str, Tensors]) -> dict[str, torch.Tensor]:
    """Return the tensors of all files of a set, by label."""
    return {text: tensor for tensors in shards.values() for text, tensor in tensors.items()}


def find_misfit(shards: Mapping[str, Tensors], model: Tensors) -> str | None:
    """Return what is wrong with a set of shards (by file), or None: labels that disagree, elements missing or doubled.

    ``model`` has the parameters, whose sizes say how many elements there must be.
    """
    state: dict[str, torch.Tensor] = {}
    origin: dict[str, str] = {}
    for file, tensors in shards.items():
        for text, tensor in tensors.items():
            if str(parse_label(text)) != text:
                return f"{file} has {text}, which is no label"
            if text in state and (tensor.ndim or parse_label(text).span):
                return f"{text} is in both {origin[text]} and {file}"
            if text in state and not _is_same(state[text], tensor):
                return f"{text} differs between {origin[text]} and {file}"
            state[text], origin[text] = tensor, file
    for label, spans in collect_spans(state).items():
        if str(label) in state:
            return f"{label} is stored both whole and in spans"
        if misfit := _find_gap(label, spans, model) or _find_odd(label, spans):
            return misfit
    return None


def _find_gap(label: Label, spans: list[Span], model: Tensors) -> str | None:
    length = model[label.name].numel() if label.name in model else spans[-1].stop
    edges = [(0, 0), *(span[:2] for span in spans), (length, length)]
    for (_, before), (after, _) in pairwise(edges):
        if before < after:
            return f"elements {before} to {after - 1} of {label} are missing"
        if before > after:
            return (
                f"elements {after} to {before - 1} of {label} are stored twice, or lie beyond the end of the parameter"
            )
    return None


def _find_odd(label: Label, spans: list[Span]) -> str | None:
    for start, stop, values in spans:
        if values.shape != (stop - start,) or values.dtype != spans[0].values.dtype:
            return f"{label._replace(span=(start, stop))} has type {values.dtype} and shape {tuple(values.shape)}"
    return None


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN included."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    return bool(torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8)))
