"""A tiny run as ``phalanx train`` leaves it, and commands that must refuse what was made of it."""

import hashlib
import os
import shutil
import stat
import sys

import torch
from tiny import CPU, make_config

from phalanx.cli import main
from phalanx.testing import World
from phalanx.train.config_text import format_config
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Keeper
from phalanx.train.loop import Trainer
from phalanx.train.rundir import RunDir

STEPS = 4


def make_run(folder, workers):
    """A run of four steps, with checkpoints of steps 2 and 4, that was not concluded."""
    settings = ["model.layers=1", "run.keep=9", f"train.steps={STEPS}", f"run.workers={workers}", "run.device=cpu"]
    config = make_config(folder, *settings, f"run.zero={str(workers > 1).lower()}")
    run = RunDir.create(folder / "run", format_config(config), {})
    torch.set_num_threads(1)

    def work(group):
        corpus = open_corpus(config.data)
        trainer = Trainer(config, corpus, group, CPU)
        with Keeper(run, config, corpus, group) as keeper:
            trainer.run(keeper)

    World(workers, lanes=config.train.lanes).run(work)
    run.result.unlink()
    run.sample.unlink()
    return run


def copy_run(run, folder):
    return RunDir(shutil.copytree(run.path, folder / "run"))


def call(capsys, monkeypatch, *arguments):
    """The exit status of a command, and what it said on stdout and on stderr."""
    monkeypatch.setattr(sys, "argv", ["phalanx", *map(str, arguments)])
    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    return status, out, err


def assert_refused(status, out, err):
    """It failed with one paragraph of moderate length, in which nothing can move a cursor."""
    said = (out + err).removesuffix("\n")
    assert status in (1, 2), (status, said)
    assert said.isprintable(), said
    assert 0 < len(said) < 2000, said


def list_tree(folder):
    """All that is in a folder: kinds, sizes, and the content of what is small."""
    return {path: describe(path) for path in sorted(folder.rglob("*"))}


def describe(path):
    found = os.lstat(path)
    is_small = stat.S_ISREG(found.st_mode) and found.st_size < 2**20
    return found.st_mode, found.st_size, hashlib.sha256(path.read_bytes()).hexdigest() if is_small else ""
