"""Runs a function on several ranks of ``torch.distributed``, each a process, and returns what they returned."""

import multiprocessing
import os
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "phalanx.torch", "torch.distributed.fsdp", "torch_checks"])
_PATIENCE_S = 150


def run(function, *arguments, size=2, backend="phalanx", survivors=None):
    """Call ``function(rank, *arguments)`` on all ranks of an initialised group; return the results by rank.

    Without a ``backend`` the function makes its group itself.
    ``survivors`` are the ranks that are expected to end by themselves; by default all.
    """
    with tempfile.TemporaryDirectory() as folder:
        ends = [_context.Pipe(duplex=False) for _ in range(size)]
        processes = [
            _context.Process(target=_work, args=(function, rank, size, backend, folder, ends[rank][1], arguments))
            for rank in range(size)
        ]
        for process, (_, sending) in zip(processes, ends, strict=True):
            process.start()
            sending.close()
        try:
            ranks = range(size) if survivors is None else survivors
            return [_receive(rank, ends[rank][0]) for rank in ranks]
        finally:
            for process in processes:
                process.join(10)
                process.kill()
                process.join()


def _receive(rank, end):
    if not end.poll(_PATIENCE_S):
        raise AssertionError(f"rank {rank} did not end")
    try:
        result, error = end.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    if error:
        raise AssertionError(f"rank {rank} failed:\n{error}")
    return result


def _work(function, rank, size, backend, folder, end, arguments):
    import torch
    from torch import distributed

    import phalanx.torch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    try:
        if backend:
            store = distributed.FileStore(str(Path(folder) / "store"), size)
            distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
        result = function(rank, *arguments)
        if backend:
            distributed.destroy_process_group()
        end.send((result, None))
    except BaseException:  # noqa: BLE001 - the test tells it
        with suppress(OSError):
            end.send((None, traceback.format_exc()))
        os._exit(1)
