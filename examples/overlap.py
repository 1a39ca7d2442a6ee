"""Work while others' data is on its way: begin every exchange as soon as its data is there, wait for all at the end.

phalanx run -n 2 examples/overlap.py
"""

import numpy as np
import numpy.typing as npt

import phalanx

LAYERS = 8
WIDTH = 256


def compute_gradient(layer: int, rank: int) -> npt.NDArray[np.float64]:
    """Stand in for the backward pass of one layer."""
    random = np.random.default_rng(seed=(layer, rank))
    return random.normal(size=(WIDTH, WIDTH)) @ random.normal(size=(WIDTH, WIDTH))


with phalanx.connect() as group:
    begun = []
    for layer in reversed(range(LAYERS)):
        gradient = compute_gradient(layer, group.rank)
        # The array belongs to the exchange until its turn is over: read it after wait().
        begun.append(group.all_reduce_nowait(gradient, op=phalanx.ReduceOp.MEAN))

    gradients = [pending.wait() for pending in begun]
    norm = np.sqrt(sum(float(np.vdot(each, each)) for each in gradients))
    print(f"rank {group.rank} averaged {len(gradients)} layers, norm {norm:.6f}")
