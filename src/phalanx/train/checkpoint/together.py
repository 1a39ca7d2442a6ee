"""Saving a checkpoint together: every rank writes its own shard, and rank 0 all else."""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array
from phalanx.errors import ConfigError
from phalanx.train.checkpoint.draft import Draft
from phalanx.train.checkpoint.shard_files import ShardFile
from phalanx.train.checkpoint.store import Checkpoint, save
from phalanx.train.checkpoint.tensor_file import FileDigest, write_tensors

_HASH_BYTES = 32
_ONE_FOLDER = "all ranks must see one folder"


class SavingGroup(Protocol):
    """Ranks that can tell each other numbers, as those of a group."""

    @property
    def rank(self) -> int:
        """This rank's number."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all_reduce(self, array: Array) -> object:
        """Replace an array by the sum of all ranks' arrays."""


def save_together(
    folder: Path,
    checkpoint: Checkpoint,
    shard: Mapping[str, torch.Tensor],
    group: SavingGroup,
    *,
    name: str = "optimizer",
) -> Path:
    """Write a checkpoint whose set ``name`` is in shards, one of each rank; return its directory. All ranks call it.

    Of ``checkpoint``, only rank 0's files and facts are written, beside where it will be, as ``save`` does. It is there
    when this returns. If a rank cannot write, all of them raise ConfigError, and nothing stays. A rank that dies
    leaves at most what the next call removes.
    """
    if group.size == 1:
        return save(folder, replace(checkpoint, files={**checkpoint.files, name: shard}))
    draft = Draft(folder, checkpoint.step)
    shard_files = [ShardFile(name, rank, group.size) for rank in range(group.size)]
    entries: dict[str, FileDigest] = {}

    def begin() -> None:
        if group.rank == 0:
            draft.begin()

    def write() -> FileDigest:
        if group.rank == 0:
            entries.update(draft.write(checkpoint.files, checkpoint.facts))
        return write_tensors(draft.path / str(shard_files[group.rank]), shard)

    def finish() -> None:
        if group.rank == 0:
            draft.finish({**entries, **{str(shard_file): entry for shard_file, entry in written.items()}})

    try:
        _do_all(begin, group, draft)
        written = dict(zip(shard_files, _do_all(write, group, draft), strict=True))
        _check_visible(draft, written, group)
        _do_all(finish, group, draft)
    finally:
        if group.rank == 0:
            draft.discard()
    return draft.target


def _do_all(act: Callable[[], FileDigest | None], group: SavingGroup, draft: Draft) -> list[FileDigest]:
    """What every rank has written, when all have; ConfigError on all of them if the system refused it to one.

    Ranks that failed tell the others, rather than leave them waiting, so that nobody writes any more when rank 0
    removes the draft.
    """
    table = np.zeros((group.size, 2 + _HASH_BYTES))
    cause: OSError | ConfigError | None = None
    try:
        if entry := act():
            table[group.rank, 1:] = [entry.size_bytes, *bytes.fromhex(entry.sha256)]
    except (OSError, ConfigError) as error:
        cause = error
        table[group.rank, 0] = getattr(error, "errno", None) or errno.EIO
    group.all_reduce(table.reshape(-1))
    if isinstance(cause, ConfigError):
        raise cause
    for rank, number in enumerate(table[:, 0].astype(int).tolist()):
        if rank and number in (errno.ENOENT, errno.EEXIST):  # that directory is not there, or another, with files in it
            raise ConfigError(f"rank {rank} does not see the {draft.path} of rank 0: {_ONE_FOLDER}") from cause
        if number:
            raise draft.refusal(OSError(number, os.strerror(number)), rank) from cause
    return [FileDigest(bytes(row[1:]).hex(), row[0]) for row in table[:, 1:].astype(int).tolist()]


def _check_visible(draft: Draft, written: Mapping[ShardFile, FileDigest], group: SavingGroup) -> None:
    """Return if rank 0 sees all that was written; ConfigError on all ranks if it does not."""
    is_missing = np.zeros(group.size)
    if group.rank == 0:
        for shard_file, entry in written.items():
            path = draft.path / str(shard_file)
            is_missing[shard_file.rank] = not path.exists() or path.stat().st_size != entry.size_bytes
    group.all_reduce(is_missing)
    for rank in np.flatnonzero(is_missing).tolist():
        raise ConfigError(f"rank {rank}'s shard is not in {draft.folder} of rank 0: {_ONE_FOLDER}")
