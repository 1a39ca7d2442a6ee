"""FSDP2 as in any other script; only the name of the backend is new.

phalanx run -n 2 examples/frameworks/fsdp2.py
torchrun --nproc-per-node 2 examples/frameworks/fsdp2.py gloo
"""

import hashlib
import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

import phalanx.torch  # noqa: F401 - registers the backend

torch.set_num_threads(1)  # more would share the cores with the other ranks
distributed.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "phalanx")
rank = distributed.get_rank()
mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))

torch.manual_seed(0)  # the same first weights on every rank
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)  # other samples on every rank
losses = []
for _ in range(20):
    inputs = torch.rand(24, 2) * 2 - 1
    loss = nn.functional.mse_loss(model(inputs), (inputs[:, :1] * 3).sin() * inputs[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

weights = hashlib.sha256(
    b"".join(each.full_tensor().detach().numpy().tobytes() for each in model.parameters())
).hexdigest()[:12]
print(f"rank {rank} over {distributed.get_backend()}: losses {losses}, weights {weights}")
distributed.destroy_process_group()
