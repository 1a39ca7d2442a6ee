"""An exchange through the gradient server, for workers that can only call out."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.buffers import Array, DType, LaneShares, even_part, square_norm
from phalanx.collectives import Finish
from phalanx.errors import Halted
from phalanx.gradient_server import WorkerClient
from phalanx.group import RunMember
from phalanx.transport import Pending, SerialExecutor
from phalanx.wire import gradient

_WORDS = 4  # 16-bit words of an f64: as f32 each passes unchanged through a sum with zeros


class StarExchange:
    """Ranks that reach each other only through a gradient server.

    The buckets of a step are sent as ``parts``, in this order, and everything else as a whole gradient. The server adds
    up lanes. Each worker divides all blocks itself.
    """

    host_position = (0, 1)
    waited_s = 0.0
    """Always 0: waiting for other ranks cannot be told from the exchange here."""

    def __init__(self, member: RunMember, client: WorkerClient, parts: Sequence[gradient.What]) -> None:
        self.rank, self.size, self.lanes = member.rank, member.size, member.lanes
        assert self.rank == client.worker, "the coordinator and the server know a worker by one number"
        self._member = member
        self._client = client
        client.watch(member.epoch, member.stall_s)
        self._parts = parts
        self._pieces = len(LaneShares.even(self.lanes, self.size).pieces(self.rank))
        self._step = 0
        self._folded = 0  # buckets of this step
        self._executor = SerialExecutor(f"phalanx-exchange-{self.rank}")

    def allocate(
        self,
        shape: int | Sequence[int],
        dtype: DType | str | type = np.float32,
        *,
        shared: bool = False,  # noqa: ARG002 - nothing is shared: everything travels
    ) -> Array:
        """Return ordinary memory."""
        return np.zeros(shape, DType.parse(dtype).numpy)

    def blocks_added_here(self, count: int) -> Sequence[int]:
        """Return the blocks that this worker measures, so that each is measured once."""
        return range(count)[even_part(count, self.size, self.rank)]

    def fold_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int | LaneShares,  # noqa: ARG002 - the server knows them
        blocks: Sequence[slice],
        finish: Finish,
        wire: DType | None = None,
        own: Mapping[int, Array] | None = None,
    ) -> Pending[Array]:
        """Begin an exchange with the server. This worker applies ``finish`` to all blocks itself."""
        assert wire is None, "the server takes f32"
        assert own is None, "everything travels"
        return self._executor.submit("the exchange of a bucket", self._fold, pieces, out, blocks, finish)

    def all_reduce(self, array: Array) -> Array:
        """Add up arrays of f64. The server adds only f32, so each worker gets all arrays and adds them up itself."""
        return self._executor.run("an all_reduce", self._all_reduce, array)

    def all_reduce_nowait(self, array: Array) -> Pending[Array]:
        """Begin an ``all_reduce``."""
        return self._executor.submit("an all_reduce", self._all_reduce, array)

    def enqueue(self, what: str, function: Callable[..., Any], *arguments: object) -> Pending[Any]:
        """Run a function in order with the exchanges."""
        return self._executor.submit(what, function, *arguments)

    def commit(self, loss: float, digest: bytes) -> None:
        """Report that the step is done, and return when it counts."""
        self._member.commit(loss, digest)
        self._step += 1
        self._folded = 0

    def halt(self, error: Halted) -> Halted:
        """Tell the coordinator to stop all ranks, and return the error in the words that all ranks get."""
        return self._member.halt(error)

    def close(self) -> None:
        """End the exchanging thread. Closing twice is harmless."""
        self._executor.close()

    def _fold(self, pieces: Array, out: Array, blocks: Sequence[slice], finish: Finish) -> Array:
        what = self._parts[self._folded] if self._folded < len(self._parts) else gradient.Whole()
        self._folded += 1
        self._send(pieces, what, out)
        measured = self.blocks_added_here(len(blocks))
        divisor = np.float32(1.0 if finish.counts is None else math.fsum(finish.counts))
        for number, block in enumerate(blocks):
            np.divide(out[block], divisor, out=out[block])
            if finish.squares is not None and number in measured:
                finish.squares[number] = square_norm(out[block])
        return out

    def _all_reduce(self, array: Array) -> Array:
        shown = np.zeros((self._pieces, self.size, len(array) * _WORDS), np.float32)
        shown[0, self.rank] = array.view(np.uint16)
        words = np.empty((self.size, len(array) * _WORDS), np.float32)
        self._send(shown, gradient.Whole(), words.reshape(-1))
        array[:] = 0.0
        for theirs in words.astype(np.uint16).view(np.float64):
            array += theirs
        return array

    def _send(self, shown: Array, what: gradient.What, out: Array) -> None:
        self._client.exchange(self._step, shown.reshape(-1), what, out=out)
