"""An exchange through the gradient server, for workers that can only call out."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from phalanx.buffers import Array, even_part, pieces, square_norm
from phalanx.collectives import Finish
from phalanx.errors import Halted
from phalanx.gradient_server import WorkerClient
from phalanx.group import Member
from phalanx.parallel.lanes import own_lanes
from phalanx.wire import gradient

_WORDS = 4  # 16-bit words of an f64: as f32 each passes unchanged through a sum with zeros


class StarExchange:
    """Everything goes through the server: bucket ``number`` as ``parts[number]``, and the rest as a whole gradient.

    The server adds lanes up; each worker divides all blocks by itself.
    """

    is_result_shared = False

    def __init__(self, member: Member, client: WorkerClient, parts: Sequence[gradient.What]) -> None:
        self.rank, self.size, self.lanes = member.rank, member.size, member.lanes
        assert self.rank == client.worker, "the coordinator and the server know a worker by one number"
        self._member = member
        self._client = client
        self._parts = parts
        own = own_lanes(self.lanes, self.size, self.rank)
        self._pieces = len(pieces(own.start, own.stop, self.lanes))
        self._step = 0

    def begin_alike(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Nothing to do: config, seed and checkpoint decide the first weights, and digests tell if they differ."""

    def allocate(self, rows: int, length: int) -> Array:
        """Ordinary memory: everything travels."""
        return np.zeros((rows, length), np.float32)

    def allocate_sum(self, length: int) -> Array:
        """Ordinary memory."""
        return np.zeros(length, np.float32)

    def fold(
        self,
        number: int,
        rows: Array,
        out: Array,
        cuts: Sequence[slice],
        finish: Finish,
        own: Mapping[int, Array] | None = None,
    ) -> None:
        """One exchange with the server; all cuts are finished here."""
        assert not own, "everything travels"
        what = self._parts[number] if number < len(self._parts) else gradient.Whole()
        self._send(rows[: self._pieces], what, out)
        divisor = finish.divisor
        part = even_part(len(cuts), self.size, self.rank)
        for index, cut in enumerate(cuts):
            if divisor is not None:
                np.divide(out[cut], np.float32(divisor), out=out[cut])
            if finish.squares is not None and part.start <= index < part.stop:
                finish.squares[index] = square_norm(out[cut])

    def add_up(self, row: Array) -> None:
        """Add up rows of f64, which the server cannot: each worker's words travel to all in a row of their own."""
        shown = np.zeros((self._pieces, self.size, len(row) * _WORDS), np.float32)
        shown[0, self.rank] = row.view(np.uint16)
        words = np.empty((self.size, len(row) * _WORDS), np.float32)
        self._send(shown, gradient.Whole(), words.reshape(-1))
        row[:] = 0.0
        for theirs in words.astype(np.uint16).view(np.float64):
            row += theirs

    def commit(self, loss: float, digest: bytes) -> None:
        """Ask the coordinator."""
        self._member.commit(loss, digest)
        self._step += 1

    def halt(self, error: Halted) -> None:
        """Tell the coordinator."""
        self._member.halt(error)

    def waited_s(self) -> float:
        """Nothing: waiting for others is not told apart from the exchange here."""
        return 0.0

    def _send(self, shown: Array, what: gradient.What, out: Array) -> None:
        self._client.exchange(self._step, shown.reshape(-1), what, out=out)
