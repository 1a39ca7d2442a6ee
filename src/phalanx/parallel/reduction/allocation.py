"""Which memory the buckets of a reducer get: it depends on the device, and on where the gradients of a GPU meet."""

import logging
from collections.abc import Sequence

import torch

from phalanx.buffers import LaneShares
from phalanx.group import Group
from phalanx.parallel.device import Meeting, Route, share
from phalanx.parallel.reduction.device_arena import arena_bytes, make_arena, make_staged_arena
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.layout import Bucket
from phalanx.parallel.reduction.memory import BucketMemory, allocate_buckets, is_staged
from phalanx.parallel.reduction.spans import rows_of

_log = logging.getLogger("phalanx")


def allocate(
    buckets: Sequence[Bucket],
    shares: LaneShares,
    exchange: Exchange,
    device: torch.device,
    added: Sequence[frozenset[int]],
    *,
    is_borrowing: bool,
    is_elastic: bool,
    is_left_out: bool,
    is_checked: bool,
) -> tuple[Route | None, list[BucketMemory]]:
    """Return the memory of all buckets, and on a GPU where gradients meet; all ranks call this together.

    This rank adds up the chunks of each bucket that are ``added`` here. ``is_left_out`` says that gradients shall not
    meet on the GPU, and ``is_checked`` that the CPU checks the sums.
    """
    rank, route = exchange.rank, None
    if is_staged(device) and isinstance(exchange, Group):
        nbytes = arena_bytes(buckets, shares, rank)
        route, shared = share(
            exchange, device, nbytes, is_elastic=is_elastic, is_left_out=is_left_out, is_checked=is_checked
        )
        if rank == 0:
            _log.info("%s", route)
        if route.meeting is Meeting.DEVICE:
            return route, [*make_arena(buckets, shares, rank, shared, added, device)]
        if route.meeting is Meeting.STAGED:
            return route, [*make_staged_arena(buckets, shares, exchange, added, device)]
    rows, used = rows_of(shares, rank), len(shares.pieces(rank))
    return route, allocate_buckets(buckets, rows, exchange, device, is_borrowing=is_borrowing, used=used)
