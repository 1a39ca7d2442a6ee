"""Checkpoints: safetensors files and a manifest of their hashes, written so that a complete one is always there."""

from phalanx.checkpoint.contents import Sets, TensorLook, compare_looks, compare_names, look_at, without_spans
from phalanx.checkpoint.draft import Sources, write
from phalanx.checkpoint.labels import Label, locate, parse_label
from phalanx.checkpoint.reader import Content, read
from phalanx.checkpoint.remote_shards import RemoteShards
from phalanx.checkpoint.shard_files import Tensors, collect_spans, find_misfit, list_shards, unite
from phalanx.checkpoint.store import (
    Checkpoint,
    cut,
    find_checkpoints,
    is_checkpoint,
    is_saved,
    latest_step,
    load,
    prune,
    save,
    step_of,
)
from phalanx.checkpoint.tensor_file import TENSORS, JoinedTensor, Pace
from phalanx.checkpoint.together import save_on_first, save_together

__all__ = [
    "TENSORS",
    "Checkpoint",
    "Content",
    "JoinedTensor",
    "Label",
    "Pace",
    "RemoteShards",
    "Sets",
    "Sources",
    "TensorLook",
    "Tensors",
    "collect_spans",
    "compare_looks",
    "compare_names",
    "cut",
    "find_checkpoints",
    "find_misfit",
    "is_checkpoint",
    "is_saved",
    "latest_step",
    "list_shards",
    "load",
    "locate",
    "look_at",
    "parse_label",
    "prune",
    "read",
    "save",
    "save_on_first",
    "save_together",
    "step_of",
    "unite",
    "without_spans",
    "write",
]
