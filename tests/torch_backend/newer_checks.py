"""What each rank does in the tests of torch 2.14 and newer."""

from datetime import timedelta

import torch
from torch import distributed

SECONDS = timedelta(seconds=60)


def memberships(rank, folder):
    """Make groups of some of three processes, one after another, and return what their members add up."""
    store = distributed.FileStore(f"{folder}/store", 3)
    distributed.init_process_group(
        "phalanx", store=store, rank=rank, world_size=3, timeout=SECONDS, enable_reconfigure=True
    )
    found = [_told(lambda: distributed.all_reduce(torch.ones(1)))]
    assert distributed.distributed_c10d._supports_reconfigure()
    store.set(f"handle-{rank}", distributed.distributed_c10d._get_reconfigure_handle())
    for uuid, members in enumerate(([0, 1, 2], [2, 0], [1, 2, 0])):
        if rank in members:
            handles = [store.get(f"handle-{member}").decode() for member in members]
            handles = set(handles) if uuid == 2 else handles
            distributed.distributed_c10d._reconfigure(uuid, handles, timeout=SECONDS).wait()
            total = torch.tensor([float(rank)])
            distributed.all_reduce(total)
            found.append(total.item())
    found.append(_told(lambda: distributed.distributed_c10d._reconfigure(2, handles, timeout=SECONDS)))
    distributed.destroy_process_group()
    return found


def calls_of_a_backend(rank):
    """Make the calls that only a ``Backend`` has, and return what they gave."""
    distributed.monitored_barrier()
    whole = torch.empty(4)
    work = distributed.all_gather_single(whole, torch.full((2,), float(rank)), async_op=True)
    work.get_future().wait()
    functional = distributed._functional_collectives
    gathered = functional.all_gather_tensor(torch.full((1,), float(rank)), 0, distributed.group.WORLD)
    return whole.tolist(), gathered.tolist()


def _told(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test compares its words
        return f"{type(error).__name__}: {error}"
    return None
