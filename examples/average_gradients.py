"""Linear regression on many workers: each has its own samples, and all end with the same weights.

phalanx run -n 3 examples/average_gradients.py
"""

import hashlib

import numpy as np

import phalanx

STEPS = 200
LEARNING_RATE = 0.1
TRUE_WEIGHTS = np.array([2.0, -1.0, 0.5])

with phalanx.connect() as group:
    random = np.random.default_rng(seed=group.rank)  # other samples on every rank
    inputs = random.normal(size=(64, 3))
    outputs = inputs @ TRUE_WEIGHTS + random.normal(scale=0.01, size=64)

    weights = np.zeros(3)
    for _ in range(STEPS):
        gradient = 2 / len(inputs) * inputs.T @ (inputs @ weights - outputs)
        group.all_reduce(gradient, op=phalanx.ReduceOp.MEAN)
        weights -= LEARNING_RATE * gradient

    digest = hashlib.sha256(weights.tobytes()).hexdigest()[:12]
    digests = group.all_gather(np.frombuffer(digest.encode(), np.uint8))
    assert (digests == digests[0]).all(), "the ranks' weights differ"
    print(f"rank {group.rank} has {weights.round(3).tolist()}, digest {digest}")
