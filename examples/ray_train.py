"""Ray Train with a coordinator of Phalanx: if one of the two workers dies, the other goes on, and Ray replaces it.

python examples/ray_train.py

It needs Ray: pip install "phalanx-train[train,ray]".
"""

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import phalanx
from phalanx.parallel import Engine, digest_weights
from phalanx.ray import PhalanxConfig


def batches(step: int, lane: int) -> list[torch.Tensor]:
    """Return the samples of a lane, which depend on the step and the lane alone."""
    return [torch.randn(4, 12, generator=torch.Generator().manual_seed(1000 * step + lane))]


def train() -> str:
    """Train on one worker; a replacement gets the state from the others."""
    torch.manual_seed(0)
    model = torch.nn.Linear(12, 1)
    with phalanx.join_run(lanes=8) as run:
        engine = Engine(model, lambda model, x: model(x).square().mean(), torch.optim.AdamW, run, lr=0.01)
        reports = list(engine.train(batches, steps=20))
    return f"loss {reports[-1].loss:.3f}, weights {digest_weights(list(model.named_parameters()))[:12]}"


ray.init(num_cpus=2, include_dashboard=False)
settings = RunConfig(failure_config=FailureConfig(max_failures=3))
workers = ScalingConfig(num_workers=2)
result = DataParallelTrainer(train, backend_config=PhalanxConfig(), scaling_config=workers, run_config=settings).fit()
print(result.return_value)
ray.shutdown()
