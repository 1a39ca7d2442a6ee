"""What an engine exchanges in a step, and the thread that does it while backward goes on."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from phalanx.buffers import Array, even_part
from phalanx.parallel.exchange import Exchange
from phalanx.parallel.flat import Bucket
from phalanx.parallel.guard import square_norm
from phalanx.parallel.held import Held
from phalanx.parallel.slots import Slot, make_slot, make_stream
from phalanx.parallel.summary import Summary
from phalanx.transport import Line, Pending


class Traffic:
    """The buckets of a step on their way; all of it in one order, which is the same on all ranks.

    First the lanes' counts go, then bucket after bucket of gradients, then the buffers, if there are any, last the
    summary. Each rank divides and measures the cuts that it adds up, while they are in cache.
    """

    def __init__(
        self,
        exchange: Exchange,
        gradients: Sequence[Bucket],
        buffers: Bucket | None,
        summary: Summary,
        rows: int,
        device: torch.device,
    ) -> None:
        self._exchange = exchange
        self._summary = summary
        self._stream = make_stream(device)
        self.is_direct = exchange.is_result_shared and exchange.lanes == exchange.size and self._stream is None
        """Whether gradients are handed over as they are: one lane a rank, in an arena."""
        self._buckets = [*gradients, *([buffers] if buffers else [])]
        stage = exchange.allocate(1, max(bucket.length for bucket in gradients)) if self.is_direct else None
        self.slots = [self._make_slot(rows, bucket, stage) for bucket in gradients]
        self.buffer_slot = self._make_slot(rows, buffers, None) if buffers else None
        self._gradients = len(gradients)
        self._counts = np.zeros(exchange.lanes)
        self._line = Line(f"phalanx-exchange-{exchange.rank}")
        self._pending: list[Pending[None]] = []

    def begin(self) -> None:
        """Begin a step."""
        self._summary.clear()
        self._counts.fill(0.0)
        self._pending.clear()

    def count(self, lane: int, count: float, *, is_last: bool) -> None:
        """Say what a lane's loss is the total of; all ranks' counts are exchanged when this rank's last is known."""
        self._counts[lane] = count
        if is_last:
            self._submit(self._exchange.add_up, self._counts)

    def let_leave(self, number: int, held: Mapping[int, torch.Tensor]) -> None:
        """Send a bucket of gradients on its way: its rows are complete, or ``held`` has them."""
        self.slots[number].show()
        self._submit(self._fold, number, self.slots[number], held)

    def let_buffers_leave(self) -> None:
        """Send the buffers on their way, when all gradients have left."""
        assert self.buffer_slot
        self.buffer_slot.show()
        self._submit(self._fold, self._gradients, self.buffer_slot, {})

    def share(self) -> None:
        """Add up the summary when everything has left, and wait for all of it."""
        self._submit(self._exchange.add_up, self._summary.row)
        for pending in self._pending:
            pending.wait()  # its call has a deadline
        self._summary.counts[:] = self._counts

    def scale(self, factor: float) -> None:
        """Multiply all gradients. Others see this rank's part of a shared result when the step is committed."""
        for bucket, slot in zip(self._buckets[: self._gradients], self.slots, strict=True):
            if self._stream is not None:
                slot.wait_until_back()
                slot.result.mul_(factor)
                continue
            cuts = bucket.cuts
            if self._exchange.is_result_shared:
                cuts = cuts[self._own(bucket)]
            for cut in cuts:
                slot.folded[cut] *= np.float32(factor)

    def wait_until_back(self) -> None:
        """Have what follows wait until all results are on the model's device."""
        for slot in (*self.slots, *([self.buffer_slot] if self.buffer_slot else [])):
            slot.wait_until_back()

    def close(self) -> None:
        """End the thread. Closing twice is harmless."""
        self._line.close()

    def _submit(self, function: Callable[..., None], *arguments: object) -> None:
        self._pending.append(self._line.submit("the exchange of a step", function, *arguments))

    def _fold(self, number: int, slot: Slot, held: Mapping[int, torch.Tensor]) -> None:
        """In the thread: add up a bucket."""
        bucket, is_gradient = self._buckets[number], number < self._gradients
        squares = self._summary.squares[bucket.first_cut :]
        own = self._own(bucket)
        divisor = np.float32(math.fsum(self._counts) if is_gradient else self._exchange.lanes)

        def finish(cut: int, values: Array) -> None:
            np.divide(values, divisor, out=values)
            if is_gradient and own.start <= cut < own.stop:
                squares[cut] = square_norm(values)

        slot.wait_until_shown()
        row = Held(bucket, held) if held else None
        if row:
            row.show(slot.shown[0], own)
        self._exchange.fold(number, slot.shown, slot.folded, bucket.cuts, finish, row)
        slot.take_back()

    def _own(self, bucket: Bucket) -> slice:
        """The cuts that are this rank's to look at."""
        return even_part(len(bucket.cuts), self._exchange.size, self._exchange.rank)

    def _make_slot(self, rows: int, bucket: Bucket, stage: Array | None) -> Slot:
        """Room for a bucket. All can go through one ``stage``, if nothing stays there: then it stays in cache."""
        shown = self._exchange.allocate(rows, bucket.length) if stage is None else stage[:, : bucket.length]
        folded = shown[0] if self._exchange.size == 1 else self._exchange.allocate_sum(bucket.length)
        return make_slot(shown, folded, torch.float32, self._stream)
