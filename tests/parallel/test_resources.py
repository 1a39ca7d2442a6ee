"""Nothing is kept that nobody needs: descriptors are few, and what is dropped is gone."""

import gc
import resource
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from engine_play import Toy, batches_of, make_engine
from spread import spread
from torch import nn

from phalanx.group import alone
from phalanx.parallel import DataParallel
from phalanx.testing import World
from usage import Usage


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists a process's descriptors")
def test_models_that_are_dropped_leave_nothing_behind():
    """Ranks are threads, so that one process has the descriptors of all of them."""
    barrier = threading.Barrier(2)
    seen = []

    def look(group):
        group.barrier()
        if barrier.wait(30) == 0:
            gc.collect()
            seen.append((len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), resident_bytes()))
        barrier.wait(30)

    def work(group):
        net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
        for turn in range(201):
            model = DataParallel(net, group, bucket_bytes=1024)
            model(torch.ones(2, 32)).sum().backward()
            net.zero_grad()
            del model
            if turn in (20, 200):
                look(group)
        return [len(each._post_accumulate_grad_hooks or ()) for each in net.parameters()]

    hooks = World(2, "arena").run(work)

    (descriptors, threads, memory), (descriptors_after, threads_after, memory_after) = seen
    assert descriptors_after <= descriptors
    assert threads_after <= threads
    assert memory_after < memory + (16 << 20)
    assert hooks == [[0] * 4] * 2


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
def test_engines_that_are_dropped_leave_nothing_behind(zero):
    def work(group):
        model = Toy(hidden=2000)

        def use_engine():
            make_engine(group, model=lambda: model, zero=zero).step(batches_of(0))

        for _ in range(20):
            use_engine()
        group.barrier()
        before = Usage()
        for _ in range(200):
            use_engine()
        before.wait_until_back()
        return sum(len(each._post_accumulate_grad_hooks or ()) for each in model.parameters())

    assert spread(2, work) == [0, 0]


def test_an_engine_that_is_dropped_leaves_its_model_alone():
    with alone(lanes=2) as group:
        engine = make_engine(group)
        engine.step(batches_of(0))
        model, run = engine.model, weakref.ref(engine._run)
        del engine
        gc.collect()

    assert run() is None
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


MAIN = "from phalanx.cli import main; main()"
SCRIPT = """
import torch
import phalanx
from phalanx.parallel import DataParallel

with phalanx.connect() as group:
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(200)))
    model = DataParallel(net, group, bucket_bytes=1)
    for _ in range(2):
        net.zero_grad()
        sum(each(torch.ones(1, 8)).sum() for each in net).backward()
    assert len(model._reducer.layout.buckets) == 400
    print("rank", group.rank, "is done")
"""


@pytest.mark.slow  # eight processes import torch
def test_400_buckets_on_8_ranks_need_fewer_than_256_descriptors(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -n 256 && exec "$0" -c "from phalanx.cli import main; main()" run -n 8 "$1"',
            sys.executable,
            str(script),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is done") == 8
