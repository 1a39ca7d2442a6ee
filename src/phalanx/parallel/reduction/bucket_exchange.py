"""What happens to one bucket in a step: gradients fill it, it leaves, other ranks see it, and its mean comes back."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phalanx.buffers import Array, DType, LaneShares
from phalanx.collectives import Finish
from phalanx.group import Group
from phalanx.parallel.reduction.device_arena import ArenaMemory
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.integrity import Integrity
from phalanx.parallel.reduction.lanes import Deposit
from phalanx.parallel.reduction.layout import Bucket
from phalanx.parallel.reduction.memory import BucketMemory, DeviceMemory, ResidentMemory, as_tensor
from phalanx.parallel.reduction.squares import Squares
from phalanx.telemetry import Activity, Recorder
from phalanx.transport import Pending


@dataclass(frozen=True, slots=True)
class BucketTerms:
    """What the buckets of a reducer have in common: who adds up which lanes, what these count for, and who watches.

    ``is_borrowing`` says that this rank reads its gradients where they are, and ``keeps`` that it needs them longer
    than the bucket does. ``is_staged`` says that the model is on a GPU.
    """

    exchange: Exchange
    shares: LaneShares
    counts: Array
    are_means: bool
    is_borrowing: bool
    keeps: bool
    is_staged: bool
    squares: Squares | None
    integrity: Integrity | None
    recorder: Recorder


class BucketExchange:
    """One bucket of a reducer, in its memory, on its way to the other ranks and back.

    ``owners`` has the owner of each chunk, None if all ranks get the whole mean. ``finish`` is what becomes of the sum.
    f32 travels as ``wire`` if that is given.
    """

    def __init__(
        self,
        number: int,
        bucket: Bucket,
        memory: BucketMemory,
        terms: BucketTerms,
        *,
        owners: Sequence[int] | None,
        wire: DType | None,
        finish: Finish,
    ) -> None:
        self._number = number
        self._bucket = bucket
        self._memory = memory
        self._terms = terms
        self._owners = owners
        self._wire = wire if bucket.dtype is DType.F32 else None
        self._finish = finish
        places = zip(bucket.parameters, bucket.places, strict=True)
        self.rows = {parameter: memory.pieces[:, place].unbind() for parameter, place in places}
        """The rows of each parameter, as flat views: making one takes long."""
        self.missing: set[int] = set()
        """The parameters whose gradients of the present lane are not there yet."""
        self.borrowed: dict[int, torch.Tensor] = {}
        """The gradients of the present lane that are read where they are."""

    # In the thread that computes

    def begin_lane(self) -> None:
        """Wait for the gradients of another lane."""
        self.missing = set(self._bucket.parameters)
        self.borrowed = {}

    def add(self, number: int, size: int, gradient: torch.Tensor | None, deposit: Deposit) -> None:
        """Add the gradient of a parameter of so many elements, None if it has none."""
        if self._terms.is_borrowing:
            self.borrowed[number] = torch.zeros(size) if gradient is None else gradient
        else:
            _store(self.rows[number], gradient, deposit)
        self.missing.discard(number)

    def leave(self) -> list[Pending[Any]]:  # Any: each has a result of its own type
        """Queue all that is to be done with the bucket, now that it is full."""
        terms, memory, number = self._terms, self._memory, self._number
        terms.recorder.record(Activity.READY, time.monotonic_ns(), number)
        lent, own = self._lend() if terms.is_borrowing else ({}, None)
        memory.start_copy_out()
        queued = [terms.exchange.enqueue("the staging of a bucket", self._stage, lent)]
        leaving = memory.host_pieces[: len(terms.shares.pieces(terms.exchange.rank))]
        finish = self._host_finish()
        if terms.integrity:
            shown = as_tensor(leaving, memory.mean.dtype)
            queued.append(terms.exchange.enqueue("the seal of a bucket", terms.integrity.seal, number, shown))
        queued.append(self._meet(leaving, finish, own))
        if terms.integrity:
            if (again := terms.integrity.add_up_again(number, leaving, terms.shares, finish)) is not None:
                queued.append(again)
            queued.append(terms.exchange.enqueue("the check of a bucket", terms.integrity.tell, number, shown))
        if terms.is_staged:
            queued.append(terms.exchange.enqueue("the return of a bucket", self._bring_back))
        return queued

    def _lend(self) -> tuple[dict[int, Array], dict[int, Array]]:
        """Return the chunks of the gradients that others of this host add up, and those that this rank does."""
        exchange, bucket = self._terms.exchange, self._bucket
        assert isinstance(exchange, Group), "only ranks that reach each other borrow"
        added = frozenset(exchange.blocks_added_first(len(bucket.chunks), self._owners))
        flat = {parameter: _flatten(gradient) for parameter, gradient in self.borrowed.items()}
        if not self._terms.keeps:
            self.borrowed = {}
        others: dict[int, Array] = {}
        own: dict[int, Array] = {}
        for index, (chunk, (parameter, start)) in enumerate(zip(bucket.chunks, bucket.origins, strict=True)):
            (own if index in added else others)[index] = flat[parameter][start : start + chunk.stop - chunk.start]
        return others, own

    def _meet(self, leaving: Array, finish: Finish, own: Mapping[int, Array] | None) -> Pending[Any]:
        """Begin the call in which the bucket meets those of the other ranks."""
        exchange, memory, lanes, chunks = self._terms.exchange, self._memory, self._terms.shares, self._bucket.chunks
        if isinstance(memory, ArenaMemory):
            assert isinstance(exchange, Group), "only ranks of a group meet on a GPU"
            return exchange.barrier_nowait()  # every rank has said that its pieces are there
        if isinstance(memory, ResidentMemory):
            pieces = memory.pieces[: len(lanes.pieces(exchange.rank))]
            return memory.exchange.fold_tensors_nowait(pieces, memory.mean, lanes=lanes, blocks=chunks, finish=finish)
        if self._owners is None:
            return exchange.fold_lanes_nowait(
                leaving, memory.host_mean, lanes=lanes, blocks=chunks, finish=finish, wire=self._wire, own=own
            )
        assert isinstance(exchange, Group), "only ranks that reach each other own blocks"
        return exchange.scatter_lanes_nowait(
            leaving,
            memory.host_mean,
            lanes=lanes,
            blocks=chunks,
            owners=self._owners,
            finish=finish,
            wire=self._wire,
            own=own,
        )

    # In the thread of the exchange

    def _stage(self, lent: Mapping[int, Array]) -> None:
        """Bring the pieces of the bucket to where other ranks see them."""
        terms, memory = self._terms, self._memory
        terms.recorder.about(self._number)
        memory.wait_for_copy_out()
        for index, values in lent.items():
            memory.host_pieces[0, self._bucket.chunks[index]] = values
        if terms.are_means and not self._bucket.is_buffer:
            total = float(terms.counts.sum())
            scale = float(terms.counts[terms.exchange.rank]) * len(terms.counts) / total if total else 0.0
            if not isinstance(memory, ArenaMemory):
                _weigh(as_tensor(memory.host_pieces, memory.mean.dtype), scale)
            elif scale != 1:
                with torch.cuda.stream(memory.stream):
                    _weigh(memory.pieces, scale)
                    memory.publish()

    def _bring_back(self) -> None:
        """Let the mean be made on its device, and measured there."""
        memory, squares = self._memory, self._terms.squares
        if isinstance(memory, DeviceMemory | ArenaMemory):
            assert squares is not None
            divisor = None if self._is_divided_on_host else self._finish.divisor
            with torch.cuda.stream(memory.stream):
                memory.make_mean(divisor)
                squares.measure(self._number, memory.padded_mean)
                memory.start_copy_in()
        else:
            memory.start_copy_in()

    def _host_finish(self) -> Finish:
        """Return what the CPU does with the sums: if the model is on a GPU, as little as it can."""
        if self._terms.squares is None:
            return self._finish
        return Finish(counts=self._finish.counts if self._is_divided_on_host else None)

    @property
    def _is_divided_on_host(self) -> bool:
        """Whether the mean is rounded on the host, so that the sum has to be divided there before."""
        is_narrow = self._bucket.dtype.is_narrow or self._wire is not None
        return is_narrow and isinstance(self._memory, DeviceMemory)


def _store(rows: Sequence[torch.Tensor], gradient: torch.Tensor | None, deposit: Deposit) -> None:
    """Store a gradient in a row, or add it to one. A missing one counts as zeros: adding these turns -0 into 0."""
    row = rows[deposit.row]
    if gradient is None:
        row.add_(0.0) if deposit.is_added else row.zero_()
    elif deposit.is_added:
        row.add_(gradient.view(-1) if gradient.is_contiguous() else gradient.reshape(-1))
    elif gradient.data_ptr() != row.data_ptr():
        row.view(gradient.shape).copy_(gradient)
    for left, right in deposit.merges:
        rows[left].add_(rows[right])


def _weigh(leaving: torch.Tensor, scale: float) -> None:
    """Multiply this rank's gradients by how often they are in the sum, which is then divided by the ranks."""
    if scale == 0:
        leaving.zero_()  # times 0 is not enough for what is not finite
    elif scale != 1:
        leaving.mul_(scale)


def _flatten(gradient: torch.Tensor) -> Array:
    flat: Array = gradient.detach().reshape(-1).numpy()
    return flat
