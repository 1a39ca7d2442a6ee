"""A loop with Accelerate, which keeps a process group that exists already.

phalanx run -n 2 examples/frameworks/accelerate_loop.py
torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py gloo
"""

import hashlib
import sys

import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.torch  # noqa: F401 - registers the backend

distributed.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "phalanx")  # before Accelerator()
accelerator = Accelerator(cpu=True)
torch.set_num_threads(1)  # Accelerate may have chosen more, which would share the cores with the other ranks

torch.manual_seed(0)
inputs = torch.rand(480, 2) * 2 - 1
samples = DataLoader(TensorDataset(inputs, (inputs[:, :1] * 3).sin() * inputs[:, 1:]), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, samples = accelerator.prepare(model, optimizer, samples)
losses = []
for _ in range(2):
    for points, targets in samples:
        loss = nn.functional.mse_loss(model(points), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())

weights = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()[:12]
print(f"rank {accelerator.process_index} over {distributed.get_backend()}: losses {losses}, weights {weights}")
accelerator.end_training()  # destroys the process group
