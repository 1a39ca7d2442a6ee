"""Shards of ranks that do not see the folder of a checkpoint: they send them to rank 0, which writes them."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from phalanx.buffers import Array, slices
from phalanx.checkpoint.tensor_file import FileDigest, encode_tensors, write_file

_CHUNK_BYTES = 4 << 20


class Messenger(Protocol):
    """Ranks that can send each other arrays. A ``Group`` is one."""

    def send(self, array: Array, to: int) -> None:
        """Send an array to a rank."""

    def recv(self, array: Array, source: int) -> object:
        """Receive an array of this type and length from a rank."""


class RemoteShards:
    """The shards of these ``ranks``, none of which is rank 0, on their way to the folder.

    They travel as the bytes of their files, in chunks, so that rank 0 needs no more memory than for one chunk.
    """

    def __init__(self, group: Messenger, ranks: Collection[int]) -> None:
        self.ranks = sorted(ranks)
        self._group = group

    def carry(self, rank: int, shard: Mapping[str, torch.Tensor], paths: Mapping[int, Path]) -> dict[int, FileDigest]:
        """Bring all shards from their ranks to their paths, and return on rank 0 the digests of the files."""
        if rank in self.ranks:
            self._send(shard)
        return self._write(paths) if rank == 0 else {}

    def _send(self, shard: Mapping[str, torch.Tensor]) -> None:
        for part in encode_tensors(shard):
            data = np.frombuffer(part, np.uint8)
            for run in slices(slice(0, len(data)), _CHUNK_BYTES):
                self._group.send(np.array([run.stop - run.start]), 0)
                self._group.send(np.ascontiguousarray(data[run]), 0)
        self._group.send(np.array([0]), 0)

    def _write(self, paths: Mapping[int, Path]) -> dict[int, FileDigest]:
        """Write the shard of each rank to its path. All shards are received, also if a write fails."""
        failure: OSError | None = None
        written: dict[int, FileDigest] = {}
        for rank in self.ranks:
            chunks = self._receive(rank)
            try:
                if failure is None:
                    written[rank] = write_file(paths[rank], chunks)
            except OSError as error:
                failure = error
            for _ in chunks:
                pass
        if failure:
            raise failure
        return written

    def _receive(self, rank: int) -> Iterator[bytes]:
        length = np.zeros(1, np.int64)
        while True:
            self._group.recv(length, rank)
            if not length[0]:
                return
            chunk = np.empty(int(length[0]), np.uint8)
            self._group.recv(chunk, rank)
            yield chunk.tobytes()
