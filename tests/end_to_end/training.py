"""Real runs of ``phalanx train``, of a model so small that starting them takes most of the time."""

import contextlib
import itertools
import json
import random
import string
import subprocess
import time
from pathlib import Path

from launching import PHALANX, environ, started

LIMIT_S = 240  # eight workers on two busy cores import torch for a minute
CONFIG = """
[model]
layers = 2
width = 32
heads = 2
kv_heads = 1
hidden = 48
dropout = 0.1
[data]
path = "{text}"
context = 32
[train]
steps = 30
batch = 16
lanes = 8
accumulate = 2
clip = 0.5
warmup = 5
eval_every = 10
eval_batches = 1
[run]
workers = 1
device = "cpu"
checkpoint_every = 5
"""


def make_text(length=20_000):
    """Letters and spaces in no order, always the same."""
    return "".join(random.Random(0).choices(string.ascii_lowercase + " \n", k=length))  # noqa: S311 - no secret


def write_config(folder, text=None):
    """A config with dropout, accumulation and clipping, and a text beside it."""
    data = folder / "text.txt"
    data.write_text(text or make_text(), encoding="utf-8")
    config = folder / "config.toml"
    config.write_text(CONFIG.format(text=data), encoding="utf-8")
    return config


def call(*arguments, **options):
    """A command of ``phalanx`` that ends by itself."""
    return subprocess.run(
        [*PHALANX, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env=environ(),
        **options,
    )


def train(*arguments):
    """What a run that gets to its end says of itself as JSON, and nothing else."""
    ended = call("train", *arguments, "--json")
    assert (ended.returncode, ended.stderr) == (0, ""), f"{ended.returncode} {ended.stderr}"
    return json.loads(ended.stdout)


def training(*arguments):
    """A run at work."""
    return started([*PHALANX, "train", *arguments])


def read_until(process, words):
    """What a run has written when it comes to these words."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"{words!r} is not in {''.join(lines)}{process.stderr.read()}")


def wait_until(process, is_true):
    """Return when something is true of a run at work."""
    end = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < end, "that took too long"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(0.01)
            raise AssertionError(f"it ended with {status}")


def workers_of(process):
    """The processes of a run's workers, in the order in which they were started."""
    children = children_of(process.pid)
    nursery = [pid for pid in children if b"phalanx.launch.nursery" in command_of(pid)]
    return children_of(nursery[0]) if nursery else children


def command_of(pid):
    """The command line of a process; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children_of(pid):
    """The processes that the main thread of a process has started; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def coordinator_of(process):
    """The process of a run's coordinator, which another thread of the launcher has started."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    others = [task / "children" for task in tasks if int(task.name) != process.pid]
    return next(int(pid) for file in others for pid in file.read_text().split())


def workers_in(run):
    """How many workers took the steps of a run: each number of them, in order, without repetitions."""
    lines = (run / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    return [number for number, _ in itertools.groupby(json.loads(line)["workers"] for line in lines)]


def bits_of(run):
    """All that a run's log says, step by step, of what was computed."""
    lines = (run / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    names = ("step", "loss_bits", "norm", "lr", "digest")
    return [tuple(json.loads(line)[name] for name in names) for line in lines]


def checkpoints_of(run):
    """The steps of a run's checkpoints, in order."""
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
