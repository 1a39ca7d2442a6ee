"""Every rank brings an array, and every rank gets the sum.

phalanx run -n 4 examples/all_reduce.py
"""

import numpy as np

import phalanx

with phalanx.connect() as group:
    array = np.full(3, group.rank + 1.0)
    group.all_reduce(array)
    print(f"rank {group.rank} of {group.size} has {array.tolist()}")
