"""Groups of torch.distributed in processes of their own, for tests."""

import contextlib
from datetime import timedelta

import torch.distributed as dist
from spread import spread

from phalanx.parallel import TorchExchange
from phalanx.testing import World

LIMIT_S = 120.0  # of a call on a busy machine; a test that fails by it takes so long


@contextlib.contextmanager
def joined(group, store, *, lanes=8, timeout_s=LIMIT_S):
    """An exchange over Gloo between the ranks of a test's group."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), group.size),
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=LIMIT_S),
    )
    with TorchExchange(lanes=lanes, timeout_s=timeout_s) as exchange:
        yield exchange


def over_gloo(size, work, folder, **options):
    """What ``work(exchange)`` returned, by rank."""
    return spread(size, _joining(work, folder, **options))


def starting_over_gloo(size, work, folder, **options):
    """The same, at work: its ranks can be killed."""
    return World(size, "arena", lanes=8, processes=True).start(_joining(work, folder, **options))


def _joining(work, folder, **options):
    store = folder / "store"
    store.unlink(missing_ok=True)

    def join(group):
        with joined(group, store, **options) as exchange:
            return work(exchange)

    return join
