"""Trains alone, then with Ray and a worker that is killed, and then with torch's DDP over our backend.

python ray_script.py TEMPORARY FOLDER STEP: worker 1 is killed in the middle of STEP. Workers write files in FOLDER.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import phalanx
from phalanx.parallel import Engine
from phalanx.ray import PhalanxConfig

STEPS, LANES, WORKERS = 40, 8, 4
TEMPORARY, FOLDER, FATAL_STEP = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])


def wait_for(path: Path, timeout_s: float) -> None:
    """Return when a file is there, or the time is over."""
    due = time.monotonic() + timeout_s
    while not path.exists() and time.monotonic() < due:
        time.sleep(0.02)


def train(folder: Path, rank: int, fatal_step: int) -> None:
    """Train on one worker, and note every step and the final digest in a file of its own."""
    dying, coming, joined = folder / "dying", folder / "coming", folder / "joined"
    is_replacement = dying.exists()
    notes = folder / f"rank{rank}-{os.getpid()}.jsonl"

    def batches(step: int, lane: int) -> list[torch.Tensor]:
        if step == fatal_step and rank == 1 and lane % 2 and not is_replacement:
            dying.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if dying.exists() and not is_replacement:  # leave the replacement time to come before the last step
            wait_for(*((coming, 90.0) if step == fatal_step + 1 else (joined, 0.5)))
        return [torch.randn(4, 12, generator=torch.Generator().manual_seed(1000 * step + lane))]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    if is_replacement:
        coming.touch()
    with phalanx.join_run(lanes=LANES) as run, notes.open("a") as file:
        engine = Engine(model, lambda model, x: model(x).square().mean(), torch.optim.AdamW, run, lr=0.01)
        for report in engine.train(batches, STEPS):
            line = {"step": report.step, "loss": report.loss.hex(), "size": run.group.size}
            print(json.dumps(line), file=file, flush=True)
            if is_replacement:
                joined.touch()
        print(json.dumps({"digest": engine.compare().hex()}), file=file)


def train_ddp() -> list[float]:
    """Train as any script for Ray does, and return the weights."""
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.full((2, 3), float(get_context().get_world_rank()))
    model(x).sum().backward()
    optimizer.step()
    return [torch.distributed.get_backend(), *model.module.weight.flatten().tolist()]


def fit(folder: Path) -> None:
    DataParallelTrainer(
        lambda: train(folder, get_context().get_world_rank(), FATAL_STEP),
        backend_config=PhalanxConfig(),
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=2)),
    ).fit()


def fit_ddp(folder: Path) -> None:
    result = TorchTrainer(
        train_ddp,
        torch_config=TorchConfig(backend="phalanx"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    ).fit()
    (folder / "ddp.json").write_text(json.dumps(result.return_value))


def with_ray(act: Callable[[], None], runtime_env: dict[str, str] | None = None) -> None:
    """Do something while a small Ray runs on this machine."""
    ray.init(
        num_cpus=5,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _temp_dir=str(TEMPORARY),
        runtime_env=runtime_env,
    )
    try:
        act()
    finally:
        ray.shutdown()


for name in ("calm", "stormy"):
    (FOLDER / name).mkdir()
train(FOLDER / "calm", 0, -1)
with_ray(lambda: fit(FOLDER / "stormy"))
# torch 2.14 and newer needs no hook
with_ray(lambda: fit_ddp(FOLDER), {"worker_process_setup_hook": "phalanx.torch.register"})
