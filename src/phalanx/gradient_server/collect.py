"""The calls of the gradient server, as tasks that yield whenever they must wait."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.buffers import Array, as_bytes, slices
from phalanx.gradient_server.accumulator import (
    Accumulator,
    Arithmetic,
    Weighting,
    check_asked,
    check_shapes,
    describe,
    has_late_weights,
)
from phalanx.gradient_server.lanes import Lanes, add_up, check_pieces
from phalanx.gradient_server.worker import RemoteWorker, Task
from phalanx.wire import gradient

_SCRATCH_BYTES = 1 << 25  # long runs separate sending from receiving, which is cheaper (docs/log.md)
_LEAST_RUN_BYTES = 1 << 18
_LANE_RUN = 1 << 20  # elements that are added up between two looks at the workers


@dataclass(frozen=True, slots=True)
class Reduced:
    """The mean of all workers' gradients, flat and in f32, and the loss over all samples.

    ``seconds`` counts from the moment the last worker began to send, so waiting for that worker is left out.
    """

    step: int
    what: gradient.What
    gradients: Array
    loss: float
    correct: int
    samples: int
    sizes: tuple[int, ...]
    seconds: float

    @classmethod
    def of(cls, mean: gradient.Mean, gradients: Array, seconds: float) -> "Reduced":
        """Return the result that a message describes."""
        return cls(mean.step, mean.what, gradients, mean.loss, mean.correct, mean.samples, mean.sizes, seconds)

    @property
    def message(self) -> gradient.Mean:
        """The message that describes this result to workers."""
        return gradient.Mean(
            self.step, self.what, len(self.gradients), self.sizes, self.loss, self.correct, self.samples
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """One gradient of every worker, to be averaged. ``scratch`` has room for one run of each worker.

    If ``is_streaming``, the mean of a run is sent while later runs arrive.
    """

    workers: Sequence[RemoteWorker]
    step: int
    what: gradient.What
    weighting: Weighting
    arithmetic: Arithmetic
    scratch: Array
    is_streaming: bool

    def reduce(self) -> Task[Reduced]:
        """Return the mean when all workers have sent all elements."""
        sent = yield from _stated(self.workers, self.step, self.what)
        check_shapes(sent, _names(self.workers))
        began = time.perf_counter()
        if not self.is_streaming and has_late_weights(sent, self.weighting):
            accumulator = yield from self._reduce_whole(sent[0].elements)
        else:
            accumulator = yield from self._reduce_runs(sent)
        mean = accumulator.describe((yield from _complete(self.workers)))
        _forget(self.workers)
        return Reduced.of(mean, accumulator.result, time.perf_counter() - began)

    def _reduce_runs(self, sent: Sequence[gradient.Gradient]) -> Task[Accumulator]:
        accumulator = self._accumulator(sent)
        mean = accumulator.describe(sent)
        if self.is_streaming:
            for worker in self.workers:
                worker.peer.say(mean)
        for run in slices(slice(0, mean.elements), self.scratch.shape[1]):
            contributions = self.scratch[:, : run.stop - run.start]
            yield from _receive(self.workers, contributions)
            accumulator.add_up(run, list(contributions))
            if self.is_streaming:
                frame = gradient.data_frame(mean, as_bytes(accumulator.result[run]))
                for worker in self.workers:
                    worker.peer.post(frame)
        return accumulator

    def _reduce_whole(self, elements: int) -> Task[Accumulator]:
        """Average whole gradients, because the weights arrive after the elements."""
        contributions = np.empty((len(self.workers), elements), np.float32)
        yield from _receive(self.workers, contributions)
        accumulator = self._accumulator((yield from _complete(self.workers)))
        for run in slices(slice(0, elements), self.scratch.shape[1]):
            accumulator.add_up(run, list(contributions[:, run]))
            yield ()
        return accumulator

    def _accumulator(self, sent: Sequence[gradient.Gradient]) -> Accumulator:
        return Accumulator(sent, _names(self.workers), self.weighting, self.arithmetic)


def add_up_lanes(workers: Sequence[RemoteWorker], step: int, what: gradient.What, lanes: Lanes) -> Task[Reduced]:
    """Return the sum of all lanes when all workers have sent their pieces.

    All pieces are held in memory: a worker sends one after the other, so no sum can start before the last has begun.
    """
    sent = yield from _stated(workers, step, what)
    check_pieces(lanes, sent, _names(workers))
    began = time.perf_counter()
    contributions = [np.empty((len(each.sizes), each.sizes[0]), np.float32) for each in sent]
    yield from _receive(workers, contributions)
    total = describe((yield from _complete(workers)), sent[0].sizes[:1])
    _forget(workers)
    result = np.empty(total.elements, np.float32)
    for run in slices(slice(0, total.elements), _LANE_RUN):
        add_up(lanes, contributions, run, result)
        yield ()
    return Reduced.of(total, result, time.perf_counter() - began)


def hear_next(workers: Sequence[RemoteWorker]) -> Task[tuple[int, gradient.What]]:
    """Return the step and the part of the model that the first worker to send has announced."""
    while not any(worker.stated for worker in workers):
        yield workers
    first = next(worker.stated[0] for worker in workers if worker.stated)
    return first.step, first.what


def make_scratch(workers: int) -> Array:
    """Return memory for one run of every worker: the unit that is received and averaged at a time."""
    run_bytes = max(_LEAST_RUN_BYTES, _SCRATCH_BYTES // workers)
    return np.empty((workers, run_bytes // gradient.ITEM_BYTES), np.float32)


def broadcast(workers: Sequence[RemoteWorker], mean: Reduced) -> Task[None]:
    """Send a mean to all workers."""
    for worker in workers:
        worker.peer.say(mean.message, as_bytes(mean.gradients))
    yield from until_quiet(workers)


def until_quiet(workers: Sequence[RemoteWorker]) -> Task[None]:
    """Return when everything for these workers has been sent."""
    while busy := [worker for worker in workers if not worker.peer.is_quiet]:
        yield busy


def _stated(workers: Sequence[RemoteWorker], step: int, what: gradient.What) -> Task[list[gradient.Gradient]]:
    while True:
        for worker in workers:
            if worker.stated:
                check_asked(worker.number, str(worker), worker.stated[0], step, what)
        missing = [worker for worker in workers if not worker.stated]
        if not missing:
            return [worker.stated[0] for worker in workers]
        yield missing


def _receive(workers: Sequence[RemoteWorker], contributions: Iterable[Array]) -> Task[None]:
    for worker, contribution in zip(workers, contributions, strict=True):
        worker.peer.room = as_bytes(contribution)
    while missing := [worker for worker in workers if worker.peer.room]:
        yield missing


def _complete(workers: Sequence[RemoteWorker]) -> Task[list[gradient.Gradient]]:
    while missing := [worker for worker in workers if not worker.complete]:
        yield missing
    return [worker.complete[0] for worker in workers]


def _forget(workers: Sequence[RemoteWorker]) -> None:
    """Drop the gradients that were averaged, so that each worker's next gradient is its first."""
    for worker in workers:
        worker.stated.popleft()
        worker.complete.popleft()


def _names(workers: Sequence[RemoteWorker]) -> list[str]:
    return [str(worker) for worker in workers]
