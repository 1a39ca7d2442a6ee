"""Merging the shards of a checkpoint into one file."""

from pathlib import Path

import torch

from phalanx.errors import ConfigError
from phalanx.parallel import parse_label
from phalanx.train.checkpoint.draft import Sources, write
from phalanx.train.checkpoint.manifest import read_manifest
from phalanx.train.checkpoint.shard_files import Tensors, collect_spans, list_shards
from phalanx.train.checkpoint.store import load
from phalanx.train.checkpoint.tensor_file import JoinedTensor


def merge_shards(path: Path, out: Path) -> Path:
    """Write a checkpoint into the folder ``out`` as if it had been saved without shards, and return its directory.

    The shards are copied from file to file: no tensor is assembled in memory.
    """
    if (out / path.name).exists():
        raise ConfigError(f"{out / path.name} exists already: name another folder")
    found = load(path)
    model = found.files.get("model", {})
    sharded = {shard.name for shard in list_shards(read_manifest(path).files)}
    files = {name: _join(each, model) if name in sharded else each for name, each in found.files.items()}
    return write(out, found.step, files, found.facts)


def _join(state: Tensors, model: Tensors) -> Sources:
    """Return the state with the shards of each parameter joined in its shape, or flat if the model lacks it."""
    files: dict[str, torch.Tensor | JoinedTensor] = {
        text: each for text, each in state.items() if not parse_label(text).span
    }
    for label, spans in collect_spans(state).items():
        shape = model[label.name].shape if label.name in model else (spans[-1].stop,)
        files[str(label)] = JoinedTensor(shape, [span.values for span in spans])
    return files
