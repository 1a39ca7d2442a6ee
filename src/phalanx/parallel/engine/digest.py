"""Digests of the weights, by which ranks notice during training that their weights differ."""

import hashlib
from collections.abc import Sequence

import torch

from phalanx.buffers import Array, even_part
from phalanx.errors import WeightsDiverged
from phalanx.parallel.optimizer import Leaf
from phalanx.wire import odd_one_out

DIGEST_STEPS = 64
"""The number of steps in which every block is checked once."""


class RollingDigest:
    """A digest of the weights that covers 1/64 of the blocks in each step, so that it costs almost nothing.

    It sums the bits of a block's values, taken as integers. If one value differs, the sum differs. After
    ``DIGEST_STEPS`` steps every block was covered.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves

    def section(self, step: int) -> range:
        """Return the numbers of the blocks that are covered before ``step``."""
        part = even_part(len(self._leaves), DIGEST_STEPS, step % DIGEST_STEPS)
        return range(part.start, part.stop)

    def sums(self, step: int) -> list[int]:
        """Return the sum of bits of each of these blocks."""
        return [_sum_of_bits(self._leaves[number].block) for number in self.section(step)]

    def digest(self, step: int) -> bytes:
        """Return 16 bytes that are equal on all ranks with equal blocks."""
        words = ",".join(map(str, [step, *self.sums(step)]))
        return hashlib.blake2b(words.encode(), digest_size=16).digest()

    def diverged(self, step: int, sums: Array) -> WeightsDiverged:
        """Return the error for ``sums`` that differ; they have a row for each rank."""
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
    """Return a hash of named weights: equal bits give an equal hash, on any device."""
    whole = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda each: each[0]):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        whole.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def _sum_of_bits(block: torch.Tensor) -> int:
    whole = int(block.detach().view(torch.int32).sum(dtype=torch.int64))
    return whole % 2**53  # so that an f64 can carry it
