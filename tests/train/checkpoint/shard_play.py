"""Ranks that save together, in threads or processes, and states cut into shards for them."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch

from forking import fork
from phalanx.errors import PeerLost
from phalanx.train.checkpoint import Checkpoint, save_together

SIZE = 4


class Seat:
    """A rank of a team whose others are reached through rank 0; who closes it, or dies, ends every meeting."""

    def __init__(self, rank, size, sockets):
        self.rank = rank
        self.size = size
        self._sockets = sockets
        for each in sockets:
            each.settimeout(30)

    def all_reduce(self, row):
        if self.rank == 0:
            row += sum(self._receive(each, row) for each in self._sockets)
        for each in self._sockets:
            self._send(each, row)
        if self.rank:
            row[:] = self._receive(self._sockets[0], row)

    def close(self):
        for each in self._sockets:
            each.close()

    def _send(self, other, row):
        try:
            other.sendall(row.tobytes())
        except OSError as error:
            raise PeerLost("somebody left") from error

    def _receive(self, other, row):
        data = b""
        while len(data) < row.nbytes:
            try:
                found = other.recv(row.nbytes - len(data))
            except ConnectionResetError:
                found = b""
            if not found:
                raise PeerLost("somebody left")
            data += found
        return np.frombuffer(data)


def make_seats(size=SIZE):
    pairs = [socket.socketpair() for _ in range(size - 1)]
    return [Seat(0, size, [ours for ours, _ in pairs])] + [
        Seat(rank, size, [theirs]) for rank, (_, theirs) in enumerate(pairs, start=1)
    ]


def make_model(step, size=12):
    """Weights by numpy: torch's threads do not outlive a fork."""
    values = np.arange(size, dtype=np.float32) + step
    return {"layer.weight": torch.from_numpy(values.reshape(3, -1)), "layer.bias": torch.from_numpy(values[:5] * 3)}


def make_state(model):
    """What an optimizer would keep for a model, whole."""
    state = {}
    for name, tensor in model.items():
        state[f"{name}.exp_avg"] = torch.from_numpy(tensor.numpy() * 2)
        state[f"{name}.step"] = torch.from_numpy(np.array(7, dtype=np.float32))
    state["layer.bias.table"] = torch.from_numpy(np.arange(6).reshape(2, 3))
    return state


def cut(state, size=SIZE):
    """The state in shards: every rank has its part of each tensor but of the table, which the last keeps whole."""
    shards = [{} for _ in range(size)]
    for label, tensor in state.items():
        if label.endswith("table"):
            shards[-1][label] = tensor
            continue
        edges = [rank * tensor.numel() // size for rank in range(size + 1)]
        for shard, (start, stop) in zip(shards, pairwise(edges), strict=True):
            if not tensor.ndim:
                shard[label] = tensor
            elif start < stop:
                shard[f"{label}[{start}:{stop}]"] = tensor.view(-1)[start:stop]
    return shards


def make_whole(step, size=12):
    model = make_model(step, size)
    return Checkpoint(step, {"model": model, "optimizer": make_state(model)}, {"tokens": step * 10})


def save_as(seat, folder, whole, shard=None):
    """What one rank does to save its shard of a checkpoint."""
    own = cut(whole.files["optimizer"], seat.size)[seat.rank] if shard is None else shard
    if seat.rank:
        return save_together(folder, Checkpoint(whole.step, {}, {}), own, seat)
    return save_together(folder, Checkpoint(whole.step, {"model": whole.files["model"]}, whole.facts), own, seat)


def save_by_threads(folders, whole, shards):
    """What became of every rank: a path, or an error."""

    def work(seat):
        try:
            return save_as(seat, folders[seat.rank], whole, shards[seat.rank])
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error
        finally:
            seat.close()

    with ThreadPoolExecutor(len(shards)) as threads:
        return list(threads.map(work, make_seats(len(shards))))


def save_shards(folder, whole, shards=None):
    """The path of a checkpoint that several threads saved."""
    shards = cut(whole.files["optimizer"]) if shards is None else shards
    paths = save_by_threads([folder] * len(shards), whole, shards)
    assert len(set(paths)) == 1
    assert isinstance(paths[0], os.PathLike), paths[0]
    return paths[0]


def fork_seats(work, size=SIZE):
    """The processes that call ``work`` with a seat each."""
    seats = make_seats(size)

    def sit(rank):
        for seat in seats[:rank] + seats[rank + 1 :]:
            seat.close()
        work(seats[rank])

    pids = [fork(lambda rank=rank: sit(rank)) for rank in range(size)]
    for seat in seats:
        seat.close()
    return pids
