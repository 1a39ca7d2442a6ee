"""Proof, while training runs, that all ranks hold the same weights; and words for what is wrong when something is."""

import hashlib
from collections.abc import Sequence

import torch

from phalanx.buffers import Array, even_part
from phalanx.errors import NonFiniteGradient, WeightsDiverged
from phalanx.parallel.blocks import Leaf
from phalanx.wire import odd_one_out

TURN = 64
"""Steps in which every block is looked at once."""


class RollingDigest:
    """A digest of the weights that looks at 1/64 of the blocks a step, so that it costs next to nothing.

    A block's sum of bits, taken as integers, differs if any one of its values does. In ``TURN`` steps every block has
    its turn.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves

    def section(self, step: int) -> range:
        """The blocks that are looked at before ``step``."""
        part = even_part(len(self._leaves), TURN, step % TURN)
        return range(part.start, part.stop)

    def sums(self, step: int) -> list[int]:
        """The sum of each of these blocks."""
        return [_sum_of_bits(self._leaves[number].block) for number in self.section(step)]

    def digest(self, step: int) -> bytes:
        """16 bytes that are the same wherever these blocks are."""
        words = ",".join(map(str, [step, *self.sums(step)]))
        return hashlib.blake2b(words.encode(), digest_size=16).digest()

    def diverged(self, step: int, sums: Array) -> WeightsDiverged:
        """The error for sums, one row a rank, that are not the same."""
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
    """A hash of all the given weights, by name: the same for the same bits, wherever they are."""
    whole = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda each: each[0]):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        whole.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def non_finite(
    step: int, *, rank: int | None, lane: int | None, parameter: str, samples: tuple[int, ...]
) -> NonFiniteGradient:
    """The error that every rank raises; without a lane, no single lane is to blame."""
    if lane is None:
        words = f"the sum of all lanes' gradients of {parameter} is not finite at step {step}, although each lane's is"
        return NonFiniteGradient(
            f"{words}: scale the loss, or clip; weights are those before this step", step=step, parameter=parameter
        )
    shown = f" (samples {', '.join(map(str, samples))})" if samples else ""
    words = f"the gradient of {parameter} is not finite at step {step}: rank {rank} computed it in lane {lane}{shown}"
    return NonFiniteGradient(
        f"{words}; weights are those before this step",
        step=step,
        rank=rank,
        lane=lane,
        parameter=parameter,
        samples=samples,
    )


def _sum_of_bits(block: torch.Tensor) -> int:
    whole = int(block.detach().view(torch.int32).sum(dtype=torch.int64))
    return whole % 2**53  # so that an f64 can carry it
