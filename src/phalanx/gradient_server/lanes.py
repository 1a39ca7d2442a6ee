"""Lanes at the gradient server: which pieces each worker sends, and their sum in the order of the canonical tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.buffers import CHUNK, Array, DType, fold_pieces, own_lanes, pieces, slices
from phalanx.errors import CollectiveMismatch, ConfigError
from phalanx.gradient_server.accumulator import check_alike
from phalanx.wire import gradient


@dataclass(frozen=True, slots=True)
class Lanes:
    """The ``count`` lanes of a step, divided among ``workers`` as evenly as possible."""

    count: int
    workers: int

    def __post_init__(self) -> None:
        if self.count < self.workers:
            raise ConfigError(
                f"{self.count} lanes are too few for {self.workers} workers: each worker needs one, so use more lanes"
            )

    def owned(self, worker: int) -> range:
        """Return the lanes of a worker."""
        return own_lanes(self.count, self.workers, worker)

    def pieces(self, worker: int) -> tuple[range, ...]:
        """Return the lanes of each piece that a worker sends, in order."""
        lanes = self.owned(worker)
        return pieces(lanes.start, lanes.stop, self.count)


def check_pieces(lanes: Lanes, contributions: Sequence[gradient.Gradient], names: Sequence[str]) -> None:
    """Raise CollectiveMismatch unless every worker sent the pieces of its lanes, all of the same length."""
    for worker, sent in enumerate(contributions):
        owned, count = lanes.owned(worker), len(lanes.pieces(worker))
        if len(sent.sizes) != count or len(set(sent.sizes)) != 1:
            raise CollectiveMismatch(
                f"{names[worker]} sent {sent}, but the sum of its lanes, {owned[0]} to {owned[-1]} of {lanes.count}, "
                f"has {count} piece{'s' if count > 1 else ''} of one length: all workers must use the same lanes",
                peer=worker,
            )
    check_alike([sent.sizes[0] for sent in contributions], contributions, names)


def add_up(lanes: Lanes, contributions: Sequence[Array], run: slice, out: Array) -> None:
    """Write one run of the sum of all lanes into ``out``; ``contributions[w]`` has a row for each piece of worker w."""
    covered = [each for worker in range(lanes.workers) for each in lanes.pieces(worker)]
    rows = [row for contribution in contributions for row in contribution]
    for chunk in slices(run, CHUNK):
        fold_pieces(DType.F32, covered, [row[chunk] for row in rows], out[chunk])
