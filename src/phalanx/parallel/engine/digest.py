"""Digests of the weights: proof, while training runs, that all ranks hold the same."""

import hashlib
from collections.abc import Sequence

import torch

from phalanx.buffers import Array, even_part
from phalanx.errors import WeightsDiverged
from phalanx.parallel.optimizer import Leaf
from phalanx.wire import odd_one_out

DIGEST_STEPS = 64
"""After so many steps every block has been looked at once."""


class RollingDigest:
    """A digest of the weights that looks at 1/64 of the blocks a step, so that it costs next to nothing.

    A block's sum of bits, taken as integers, differs if any one of its values does. ``DIGEST_STEPS`` steps look at
    every block.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves

    def section(self, step: int) -> range:
        """Return the blocks that are looked at before ``step``."""
        part = even_part(len(self._leaves), DIGEST_STEPS, step % DIGEST_STEPS)
        return range(part.start, part.stop)

    def sums(self, step: int) -> list[int]:
        """Return the sum of bits of each of these blocks."""
        return [_sum_of_bits(self._leaves[number].block) for number in self.section(step)]

    def digest(self, step: int) -> bytes:
        """Return 16 bytes that are the same wherever these blocks are the same."""
        words = ",".join(map(str, [step, *self.sums(step)]))
        return hashlib.blake2b(words.encode(), digest_size=16).digest()

    def diverged(self, step: int, sums: Array) -> WeightsDiverged:
        """Return the error for ``sums``, one row for each rank, that are not the same."""
        odd = odd_one_out({rank: tuple(row) for rank, row in enumerate(sums.tolist())})
        assert odd, "called because they differ"
        rank, other = odd
        number = next(
            index for index, pair in enumerate(zip(sums[rank], sums[other], strict=True)) if pair[0] != pair[1]
        )
        name = self._leaves[self.section(step)[number]].name
        suspects = f"the machine of rank {rank}" if len(sums) > 2 else "both machines"
        words = (
            f"rank {rank} has other weights than rank {other} in {name} before step {step}: start again from the last"
        )
        return WeightsDiverged(f"{words} checkpoint, and look at {suspects}", step=step, rank=rank, parameter=name)


def digest_weights(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Return a hash of the given weights, by name: the same for the same bits, wherever they are."""
    whole = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda each: each[0]):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        whole.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def _sum_of_bits(block: torch.Tensor) -> int:
    whole = int(block.detach().view(torch.int32).sum(dtype=torch.int64))
    return whole % 2**53  # so that an f64 can carry it
