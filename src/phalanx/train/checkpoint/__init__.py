"""The checkpoints of runs: what must be in them, finding them, describing them, and merging their shards."""

from phalanx.checkpoint import Checkpoint, Pace, cut, is_saved, prune, save, save_together
from phalanx.train.checkpoint.describe import Amount, Description, describe_checkpoint
from phalanx.train.checkpoint.facts import Best, BundleFacts, RunFacts, parse_facts
from phalanx.train.checkpoint.merge import merge_shards
from phalanx.train.checkpoint.store import list_checkpoints, load, load_for_resume, load_latest

__all__ = [
    "Amount",
    "Best",
    "BundleFacts",
    "Checkpoint",
    "Description",
    "Pace",
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
