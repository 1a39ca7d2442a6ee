"""Merging the shards of a checkpoint into one file."""

from pathlib import Path

import torch

from phalanx.checkpoint import TENSORS, JoinedTensor, Sources, Tensors, collect_spans, parse_label, unite, write
from phalanx.errors import ConfigError
from phalanx.train.checkpoint.store import read_chosen


def merge_shards(path: Path, out: Path) -> Path:
    """Write a checkpoint into the folder ``out`` as if it had been saved without shards, and return its directory.

    The shards are copied from file to file: no tensor is assembled in memory.
    """
    if (out / path.name).exists():
        raise ConfigError(f"{out / path.name} exists already: name another folder")
    manifest, facts, sets = read_chosen(path)
    model = unite(sets.get("model", {}))
    files = {
        name: unite(shards) if name + TENSORS in shards else _join(unite(shards), model)
        for name, shards in sets.items()
    }
    return write(out, manifest.step, files, facts)


def _join(state: Tensors, model: Tensors) -> Sources:
    """Return the state with the shards of each parameter joined in its shape, or flat if the model lacks it."""
    files: dict[str, torch.Tensor | JoinedTensor] = {
        text: each for text, each in state.items() if not parse_label(text).span
    }
    for label, spans in collect_spans(state).items():
        shape = model[label.name].shape if label.name in model else (spans[-1].stop,)
        files[str(label)] = JoinedTensor(shape, [span.values for span in spans])
    return files
