"""A PyTorch loop of your own on many workers: wrap the model, give each rank its samples, change nothing else.

phalanx run -n 3 examples/data_parallel.py
"""

import hashlib

import torch
from torch import nn

import phalanx
from phalanx.parallel import DataParallel

STEPS = 200
BATCH = 48

torch.set_num_threads(1)  # more would share the cores with the other ranks

with phalanx.connect() as group:
    torch.manual_seed(group.rank)  # other samples on every rank; first weights come from rank 0
    model = DataParallel(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)), group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    for _ in range(STEPS):
        inputs = torch.rand(BATCH // group.size, 2) * 2 - 1
        targets = (inputs[:, :1] * 3).sin() * inputs[:, 1:]
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # when it returns, .grad is the mean over all ranks
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    print(f"rank {group.rank}: loss {loss.item():.4f}, weights {hashlib.sha256(weights).hexdigest()[:12]}")
