"""Who shares memory with whom, and what a group makes of it.

phalanx run -n 4 --hosts 2 examples/several_hosts.py
"""

import numpy as np

import phalanx

with phalanx.connect() as group:
    array = np.ones(1 << 18, np.float32)
    group.all_reduce(array)

    if group.rank == 0:
        for number, ranks in enumerate(group.hosts):
            print(f"host {number}: ranks {', '.join(map(str, ranks))}")
        for collective, nbytes in (("all_reduce", array.nbytes), ("broadcast", array.nbytes), ("barrier", 0)):
            print(f"{collective} of {nbytes} bytes: {group.explain(collective, nbytes)}")
        statistics = group.statistics()
        print(f"over links: {statistics.bytes_sent} bytes sent, {statistics.bytes_received} received")
