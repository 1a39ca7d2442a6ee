"""Nothing is kept that nobody needs: descriptors are few, and what is dropped is gone."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from engine_play import Toy, batches_of, make_engine
from spread import spread
from torch import nn

from phalanx.group import alone
from phalanx.parallel import DataParallel
from usage import Usage


def count_hooks(module):
    return sum(len(each._post_accumulate_grad_hooks or ()) for each in module.parameters())


def use_often(group, module, use):
    """Fail if ``use`` leaves a hook on the module, or if this rank needs more of anything after 50 calls."""
    for _ in range(10):
        use()
    group.barrier()
    before = Usage()
    assert count_hooks(module) == 0
    for _ in range(50):
        use()
    before.wait_until_back()


@pytest.mark.slow
def test_models_that_are_dropped_leave_nothing_behind():
    def work(group):
        net = nn.Sequential(nn.Linear(32, 4000), nn.Linear(4000, 8))

        def use():
            DataParallel(net, group, bucket_bytes=1024)(torch.ones(2, 32)).sum().backward()
            net.zero_grad()

        use_often(group, net, use)

    spread(2, work, lanes=None)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
def test_engines_that_are_dropped_leave_nothing_behind(zero):
    def work(group):
        net = Toy(hidden=2000)
        use_often(group, net, lambda: make_engine(group, model=lambda: net, zero=zero).step(batches_of(0)))

    spread(2, work)


def test_an_engine_that_is_dropped_leaves_its_model_alone():
    with alone(lanes=2) as group:
        engine = make_engine(group)
        engine.step(batches_of(0))
        model, run = engine.model, weakref.ref(engine._lane_run)
        del engine
        gc.collect()

    assert run() is None
    assert count_hooks(model) == 0


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
