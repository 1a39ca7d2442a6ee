"""DistributedDataParallel as in any other script; only the name of the backend is new.

phalanx run -n 2 examples/frameworks/ddp.py
torchrun --nproc-per-node 2 examples/frameworks/ddp.py gloo
"""

import hashlib
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import phalanx.torch  # noqa: F401 - registers the backend

torch.set_num_threads(1)  # more would share the cores with the other ranks
distributed.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "phalanx")
rank = distributed.get_rank()

torch.manual_seed(rank)  # other samples on every rank; first weights come from rank 0
model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for _ in range(20):
    inputs = torch.rand(24, 2) * 2 - 1
    loss = nn.functional.mse_loss(model(inputs), (inputs[:, :1] * 3).sin() * inputs[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

weights = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()[:12]
print(f"rank {rank} over {distributed.get_backend()}: losses {losses}, weights {weights}")
distributed.destroy_process_group()
