"""Checkpoints: safetensors files and a manifest of their hashes, written so that a complete one is always there."""

from phalanx.train.checkpoint.contents import Best, BundleFacts, RunFacts, parse_facts
from phalanx.train.checkpoint.describe import Amount, Description, describe_checkpoint
from phalanx.train.checkpoint.merge import merge_shards
from phalanx.train.checkpoint.store import (
    Checkpoint,
    cut,
    is_saved,
    list_checkpoints,
    load,
    load_for_resume,
    load_latest,
    prune,
    save,
)
from phalanx.train.checkpoint.together import save_together

__all__ = [
    "Amount",
    "Best",
    "BundleFacts",
    "Checkpoint",
    "Description",
    "RunFacts",
    "cut",
    "describe_checkpoint",
    "is_saved",
    "list_checkpoints",
    "load",
    "load_for_resume",
    "load_latest",
    "merge_shards",
    "parse_facts",
    "prune",
    "save",
    "save_together",
]
