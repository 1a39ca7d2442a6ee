"""Checkpoints: safetensors files and a manifest of their hashes, written so that a complete one is always there."""

from phalanx.train.checkpoint.describe import Amount, Description, describe_checkpoint
from phalanx.train.checkpoint.merge import merge_shards
from phalanx.train.checkpoint.store import Checkpoint, cut, list_checkpoints, load, load_for_resume, prune, save
from phalanx.train.checkpoint.together import save_together

__all__ = [
    "Amount",
    "Checkpoint",
    "Description",
    "cut",
    "describe_checkpoint",
    "list_checkpoints",
    "load",
    "load_for_resume",
    "merge_shards",
    "prune",
    "save",
    "save_together",
]
