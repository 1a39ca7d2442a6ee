"""A Lightning Trainer; only the name of the backend is new.

phalanx run -n 2 examples/frameworks/lightning_ddp.py
torchrun --nproc-per-node 2 examples/frameworks/lightning_ddp.py gloo
"""

import hashlib
import sys

import torch
from lightning import pytorch as pl
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.torch  # noqa: F401 - registers the backend


class Regression(pl.LightningModule):  # noqa: D101
    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:  # noqa: D102
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        return torch.optim.AdamW(self.parameters(), lr=0.05)


torch.set_num_threads(1)  # more would share the cores with the other ranks
pl.seed_everything(0)
model = Regression()
model.net, model.losses = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)), []
inputs = torch.rand(480, 2) * 2 - 1
samples = DataLoader(TensorDataset(inputs, (inputs[:, :1] * 3).sin() * inputs[:, 1:]), batch_size=24, shuffle=True)
strategy = pl.strategies.DDPStrategy(process_group_backend=sys.argv[1] if len(sys.argv) > 1 else "phalanx")
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=3, **quiet)
trainer.fit(model, samples)
weights = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()[:12]
print(f"rank {trainer.global_rank} over {distributed.get_backend()}: losses {model.losses}, weights {weights}")
