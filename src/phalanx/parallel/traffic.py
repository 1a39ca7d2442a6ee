"""What an engine exchanges in a step, and the thread that does it while backward goes on."""

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch

from phalanx.buffers import Array, even_part
from phalanx.collectives import Finish
from phalanx.parallel.exchange import Exchange, Sharding
from phalanx.parallel.flat import Bucket
from phalanx.parallel.held import Held
from phalanx.parallel.shards import Ownership
from phalanx.parallel.slots import Slot, make_slot, make_stream
from phalanx.parallel.summary import Summary
from phalanx.transport import Pending, SerialExecutor


class Traffic:
    """The buckets of a step on their way; all of it in one order, which is the same on all ranks.

    First the lanes' counts go, then bucket after bucket of gradients, then the buffers, if there are any, last the
    summary. Each rank divides and measures the cuts that it adds up, while they are in cache. With
    ``sharding`` a rank gets only the gradients of what it owns.
    """

    def __init__(
        self,
        exchange: Exchange,
        gradients: Sequence[Bucket],
        buffers: Bucket | None,
        summary: Summary,
        rows: int,
        device: torch.device,
        sharding: Sharding | None = None,
    ) -> None:
        self._exchange = exchange
        self._summary = summary
        self._stream = make_stream(device)
        self.is_direct = exchange.is_result_shared and exchange.lanes == exchange.size and self._stream is None
        """Whether gradients are handed over as they are: one lane a rank, in an arena."""
        self._buckets = [*gradients, *([buffers] if buffers else [])]
        self._sharding = sharding
        self._owners = [_owners(bucket, sharding.ownership) for bucket in gradients] if sharding else []
        self._own = [self._list_own(number) for number in range(len(self._buckets))]
        stage = exchange.allocate(1, max(bucket.length for bucket in gradients)) if self.is_direct else None
        is_sharded = sharding is not None
        self.slots = [self._make_slot(rows, bucket, stage, is_sharded=is_sharded) for bucket in gradients]
        self.buffer_slot = self._make_slot(rows, buffers, None, is_sharded=False) if buffers else None
        self._gradients = len(gradients)
        self._counts = np.zeros(exchange.lanes)
        self._line = SerialExecutor(f"phalanx-exchange-{exchange.rank}")
        self._pending: list[Pending[None]] = []
        weakref.finalize(self, self._line.close)  # an engine that is dropped has no thread any more

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
        is_own_only = self._exchange.is_result_shared or self._sharding is not None
        for number, slot in enumerate(self.slots):
            if self._stream is not None:
                slot.wait_until_back()
                slot.result.mul_(factor)
                continue
            cuts = self._buckets[number].cuts
            for cut in [cuts[each] for each in self._own[number]] if is_own_only else cuts:
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
        if is_gradient:
            squares = self._summary.squares[bucket.first_cut : bucket.first_cut + len(bucket.cuts)]
            finish = Finish(self._counts, squares)
        else:
            finish = Finish(np.array([self._exchange.lanes], np.float64))
        slot.wait_until_shown()
        own: dict[int, Array] = {}
        if held:
            gradients = Held(bucket, held)
            gradients.show(slot.shown[0], self._own[number])
            own = {cut: gradients[bucket.cuts[cut]] for cut in self._own[number]}
        if is_gradient and self._sharding:
            owners = self._owners[number]
            self._sharding.exchange.scatter(slot.shown, slot.folded, bucket.cuts, owners, finish, own)
        else:
            self._exchange.fold(number, slot.shown, slot.folded, bucket.cuts, finish, own)
        slot.take_back()

    def _list_own(self, number: int) -> Collection[int]:
        """The cuts of a bucket that are this rank's to look at."""
        if number < len(self._owners):
            return {cut for cut, owner in enumerate(self._owners[number]) if owner == self._exchange.rank}
        part = even_part(len(self._buckets[number].cuts), self._exchange.size, self._exchange.rank)
        return range(part.start, part.stop)

    def _make_slot(self, rows: int, bucket: Bucket, stage: Array | None, *, is_sharded: bool) -> Slot:
        """Room for a bucket. All can go through one ``stage``, if nothing stays there: then it stays in cache."""
        shown = self._exchange.allocate(rows, bucket.length) if stage is None else stage[:, : bucket.length]
        if stage is not None and is_sharded:
            folded: Array = np.zeros(bucket.length, np.float32)  # of which only the own cuts ever take up memory
        elif self._exchange.size == 1 or is_sharded:
            folded = shown[0]
        else:
            folded = self._exchange.allocate_sum(bucket.length)
        return make_slot(shown, folded, torch.float32, self._stream)


def _owners(bucket: Bucket, ownership: Ownership) -> list[int]:
    """Who owns each cut of a bucket."""
    return [ownership.owner_at(*bucket.origins[cut.start]) for cut in bucket.cuts]
