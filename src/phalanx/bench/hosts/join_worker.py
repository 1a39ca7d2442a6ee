"""One worker of ``phalanx bench join``: those of the first hosts train, and the one of the last host joins them."""

import time
from pathlib import Path

import msgspec
import torch

import phalanx
from phalanx.bench.hosts.join import WIDTH, JoinTask, JoinTime
from phalanx.bench.training.driver import ANSWER
from phalanx.bench.training.worker import read_command
from phalanx.launch.env import read_launch
from phalanx.launch.network import enter
from phalanx.parallel import Engine
from phalanx.transport import Deadline

_LIMIT_S = 300.0
_LOOK_S = 0.05
_STEPS = 10_000  # more than the others take until the last one has joined
_FIRST_STEPS = "first-steps"  # the file that says that the others train


def main() -> None:
    """Train with the others, or join them and answer how long it took."""
    task, folder = read_command(JoinTask)
    launch = read_launch()
    assert launch is not None
    assert launch.host is not None
    place = int(launch.host.removeprefix("host"))
    enter(task.namespaces[place])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(task.layers)))
    is_joiner = place == len(task.namespaces) - 1
    if is_joiner:
        _wait_for(folder / _FIRST_STEPS)
    began: list[float] = []

    def batches(_step: int, _lane: int) -> list[torch.Tensor]:
        began.append(time.perf_counter())
        return [torch.ones(1, WIDTH)]

    with phalanx.join_run(lanes=len(task.namespaces), timeout_s=_LIMIT_S) as run:
        admitted = time.perf_counter()
        engine = Engine(model, lambda model, batch: model(batch).square().mean(), torch.optim.AdamW, run, lr=1e-6)
        for report in engine.train(batches, steps=_STEPS):
            if report.step == 1:
                (folder / _FIRST_STEPS).touch()
            if run.group.size == len(task.namespaces) and began:  # the joiner's first report is of an earlier step
                break
    if is_joiner:
        (folder / ANSWER).write_bytes(msgspec.json.encode(JoinTime(began[0] - admitted)))


def _wait_for(file: Path) -> None:
    deadline = Deadline.after(_LIMIT_S)
    while not file.exists():
        if deadline.has_passed:
            raise phalanx.ConnectError(f"the other workers took no step within {_LIMIT_S:g} s")
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
