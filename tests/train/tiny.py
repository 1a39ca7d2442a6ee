"""A run so small that a step takes milliseconds."""

import random
from contextlib import contextmanager

import torch

from phalanx.group import alone
from phalanx.train.config_text import parse_config
from phalanx.train.data import open_corpus
from phalanx.train.loop import Trainer

CPU = torch.device("cpu")
CONFIG = """
[model]
layers = 2
width = 16
heads = 2
kv_heads = 1
hidden = 16
dropout = 0.1
tied = false
[data]
path = "{path}"
context = 16
[train]
steps = 6
batch = 8
lanes = 4
accumulate = 2
warmup = 2
eval_every = 4
eval_batches = 1
[run]
checkpoint_every = 2
keep = 1
"""


def make_config(folder, *sets, text=None):
    """A config, and the text that it names."""
    path = folder / "text.txt"
    path.write_text(text or "".join(random.Random(0).choices("abcdefgh ", k=4000)), encoding="utf-8")  # noqa: S311
    return parse_config(CONFIG.format(path=path), sets)


@contextmanager
def training(config, start=None):
    """A worker that is alone."""
    torch.set_num_threads(1)
    with alone(10.0, config.train.lanes) as group:
        yield Trainer(config, open_corpus(config.data), group, CPU, start)


class Notes:
    """Keeps what a keeper is told."""

    def __init__(self):
        self.records = []
        self.lasts = []
        self.has_concluded = False

    def keep(self, record, _engine, *, is_last):
        self.records.append(record)
        self.lasts.append(is_last)

    def conclude(self, _engine):
        self.has_concluded = True

    @property
    def bits(self):
        return [(record.step, record.loss_bits, record.norm, record.digest) for record in self.records]
