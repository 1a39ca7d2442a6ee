"""Saving a checkpoint together: rank 0 writes everything, or every rank its own shard and rank 0 everything else."""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array
from phalanx.checkpoint.draft import Draft, draw_number
from phalanx.checkpoint.remote_shards import RemoteShards
from phalanx.checkpoint.shard_files import ShardFile
from phalanx.checkpoint.store import Checkpoint, save
from phalanx.checkpoint.tensor_file import FileDigest, write_tensors
from phalanx.errors import ConfigError

_HASH_BYTES = 32
_ONE_FOLDER = "all ranks must see one folder"


class SavingGroup(Protocol):
    """The ranks that save together. A ``Group`` is one."""

    @property
    def rank(self) -> int:
        """This rank's number."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_reduce(self, array: Array) -> object:
        """Replace an array by the sum of all ranks' arrays."""


def save_together(
    folder: Path,
    checkpoint: Checkpoint,
    shard: Mapping[str, torch.Tensor],
    group: SavingGroup,
    *,
    name: str = "optimizer",
    remote: RemoteShards | None = None,
) -> Path:
    """Write a checkpoint whose set ``name`` is in shards, one for each rank, and return its directory.

    All ranks call this. Rank 0 also writes the files and facts of its ``checkpoint``; those of other ranks are
    ignored. Rank 0 writes the shards of ranks that are ``remote``, too. The checkpoint is complete when this returns.
    If a rank cannot write, all ranks raise ConfigError and nothing stays. A rank that dies may leave a draft, which the
    next call removes.
    """
    if group.size == 1:
        return save(folder, replace(checkpoint, files={**checkpoint.files, name: shard}))
    draft = Draft(folder, checkpoint.step, _agree_on_number(group))
    shard_files = [ShardFile(name, rank, group.size) for rank in range(group.size)]
    paths = {shard_file.rank: draft.path / str(shard_file) for shard_file in shard_files}
    entries: dict[str, FileDigest] = {}
    written: dict[int, FileDigest] = {}

    def begin() -> None:
        if group.rank == 0:
            draft.begin()

    def write() -> dict[int, FileDigest]:
        if group.rank == 0:
            entries.update(draft.write(checkpoint.files, checkpoint.facts))
        is_remote = remote and group.rank in remote.ranks
        return {} if is_remote else {group.rank: write_tensors(paths[group.rank], shard)}

    def finish() -> None:
        if group.rank == 0:
            draft.finish({**entries, **{str(shard_files[rank]): entry for rank, entry in written.items()}})

    try:
        _do_all(begin, group, draft)
        written |= _do_all(write, group, draft)
        if remote:
            written |= _do_all(partial(remote.carry, group.rank, shard, paths), group, draft)
        _check_visible(draft, paths, written, group)
        _do_all(finish, group, draft)
    finally:
        if group.rank == 0:
            draft.discard()
    return draft.target


def save_on_first(folder: Path, checkpoint: Checkpoint, group: SavingGroup) -> Path:
    """Write a checkpoint on rank 0 and return its directory; the checkpoints of other ranks are ignored.

    All ranks call this. The checkpoint is complete when it returns. If rank 0 cannot write, all ranks raise ConfigError
    and nothing stays.
    """
    draft = Draft(folder, checkpoint.step, _agree_on_number(group))

    def write() -> None:
        if group.rank == 0:
            draft.begin()
            draft.finish(draft.write(checkpoint.files, checkpoint.facts))

    try:
        _do_all(write, group, draft)
    finally:
        if group.rank == 0:
            draft.discard()
    return draft.target


def _agree_on_number(group: SavingGroup) -> int:
    number = np.zeros(1)
    if group.rank == 0:
        number[0] = draw_number()
    group.all_reduce(number)
    return int(number[0])


def _do_all(
    act: Callable[[], Mapping[int, FileDigest] | None], group: SavingGroup, draft: Draft
) -> dict[int, FileDigest]:
    """Call ``act`` on all ranks, and return the digests of all files that were written, by the rank of the shard.

    If one fails, all raise ConfigError. A rank that failed tells the others instead of leaving them waiting, so nobody
    writes any more when rank 0 removes the draft.
    """
    table = np.zeros((group.size, 2 + _HASH_BYTES))
    cause: OSError | ConfigError | None = None
    try:
        for rank, entry in (act() or {}).items():
            table[rank, 1:] = [entry.size_bytes, *bytes.fromhex(entry.sha256)]
    except (OSError, ConfigError) as error:
        cause = error
        table[group.rank, 0] = getattr(error, "errno", None) or errno.EIO
    group.all_reduce(table.reshape(-1))
    if table[:, 0].any():
        # A rank that was stopped may have got the others' values of an epoch that is over. They do not come a second
        # time, so it learns that here, before it blames its disk.
        group.all_reduce(np.zeros(1))
    if isinstance(cause, ConfigError):
        raise cause
    for rank, number in enumerate(table[:, 0].astype(int).tolist()):
        if rank and number in (
            errno.ENOENT,
            errno.EEXIST,
        ):  # the directory is missing, or is another one with files in it
            raise ConfigError(f"rank {rank} does not see the {draft.folder} of rank 0: {_ONE_FOLDER}") from cause
        if number:
            raise draft.refusal(OSError(number, os.strerror(number)), rank) from cause
    rows = enumerate(table[:, 1:].astype(int).tolist())
    return {rank: FileDigest(bytes(row[1:]).hex(), row[0]) for rank, row in rows if row[0]}


def _check_visible(
    draft: Draft, paths: Mapping[int, Path], written: Mapping[int, FileDigest], group: SavingGroup
) -> None:
    """Raise ConfigError on all ranks unless rank 0 sees every shard."""
    is_missing = np.zeros(group.size)
    if group.rank == 0:
        for rank, entry in written.items():
            is_missing[rank] = not paths[rank].exists() or paths[rank].stat().st_size != entry.size_bytes
    group.all_reduce(is_missing)
    for rank in np.flatnonzero(is_missing).tolist():
        raise ConfigError(f"rank {rank}'s shard is not in {draft.folder} of rank 0: {_ONE_FOLDER}")
