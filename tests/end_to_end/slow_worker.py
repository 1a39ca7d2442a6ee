"""A worker of ``phalanx train`` that is slow on purpose: ``slow_worker.py RUN_DIR HOW [NAMESPACE ...]``.

The last worker is busy in every backward, waits for its data, or hangs after it has said where the coordinator is. With
network namespaces each worker is in its own. The last one writes its process to ``slow.pid``: its rank may be any.
"""

import os
import sys
import threading
import time
from pathlib import Path

from phalanx.cli import train_work
from phalanx.launch.env import read_launch
from phalanx.launch.network import enter
from phalanx.train import loop
from phalanx.train.rundir import RunDir
from phalanx.transport import format_address

EXTRA_S = 0.05
HANG_S = 100


def busy(_):
    """Compute for a while, as a slow processor would."""
    end = time.perf_counter() + EXTRA_S
    while time.perf_counter() < end:
        pass


def slow_down_backward():
    make_loss = loop.make_loss

    def make(config, device):
        compute = make_loss(config, device)

        def slow(model, batch):
            total, count = compute(model, batch)
            if total.requires_grad:
                total.register_hook(busy)
            return total, count

        return slow

    loop.make_loss = make


def slow_down_loader():
    batches = loop.LaneBatches.batches

    def slow(self, step, lane):
        time.sleep(EXTRA_S)
        return batches(self, step, lane)

    loop.LaneBatches.batches = slow


def hang():
    batches = loop.LaneBatches.batches

    def hang_on_purpose(self, step, lane):
        if step == 2:
            sys.stdout.write(f"coordinator {format_address(read_launch().coordinator[0])}\n")
            sys.stdout.flush()
            threading.Event().wait(HANG_S)
        return batches(self, step, lane)

    loop.LaneBatches.batches = hang_on_purpose


def main():
    run, how, *namespaces = sys.argv[1:]
    launch = read_launch()
    if namespaces:
        enter(namespaces[launch.rank])
    if launch.rank == launch.size - 1:
        Path(run, "slow.pid").write_text(str(os.getpid()), encoding="utf-8")
        {"backward": slow_down_backward, "loader": slow_down_loader, "hang": hang}.get(how, lambda: None)()
    train_work.work(RunDir.open(Path(run)))


if __name__ == "__main__":
    main()
