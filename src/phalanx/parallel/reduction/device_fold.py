"""What a GPU computes of a sum, by operations whose bits depend on nothing but the values that they are given."""

from collections.abc import Sequence

import numpy as np
import torch

from phalanx.buffers import CHUNK, Array, plan_fold
from phalanx.parallel.reduction.spans import ROW, Measured

NARROW = (torch.bfloat16, torch.float16)
"""Types whose values are added up and updated in f32."""

_SHAPES = {True: (-1, ROW, CHUNK // ROW), False: (-1, ROW)}


def add_up(lanes: tuple[range, ...], inputs: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Add up pieces in the order of the tree over lanes; input i is the sum of ``lanes[i]``. Return where the sum is.

    That is ``out``, or f32 values if the inputs are narrow. A single piece may lie in ``out``.
    """
    is_narrow = out.dtype in NARROW
    if len(inputs) == 1:
        if is_narrow:
            return inputs[0].float()
        if inputs[0].data_ptr() != out.data_ptr():
            out.copy_(inputs[0])
        return out
    plan = plan_fold(lanes, is_narrow, not is_narrow)
    kind = torch.float32 if is_narrow else out.dtype
    scratch = torch.empty((plan.rows, len(out)), dtype=kind, device=out.device)
    registers = [*inputs, *scratch.unbind(), out]
    for left, right, target in plan.steps:
        if right is None:
            registers[target].copy_(registers[left])
        else:
            torch.add(registers[left], registers[right], out=registers[target])
    return scratch[0] if is_narrow else out


def divide(total: torch.Tensor, divisor: float | None) -> None:
    """Divide in place. By a number, a GPU would multiply by its inverse; by a tensor it divides, as a CPU does."""
    if divisor is not None and divisor != 1:
        total.div_(torch.full((), divisor, dtype=total.dtype, device=total.device))


def measure(values: torch.Tensor, plan: Measured) -> torch.Tensor:
    """Return a norm for every ``ROW`` elements of the chunks of a bucket, in f32, or in f64 for f64.

    The elements of a norm, and the order in which a GPU adds up their squares, depend on the chunk alone, and not on
    how many chunks are measured with it. In a whole chunk they are apart, so that neighbours are read together.
    """
    wide = values.float() if values.dtype in NARROW else values
    norms = [
        torch.linalg.vector_norm(wide[run.elements].view(_SHAPES[run.are_whole]), dim=1).view(-1) for run in plan.runs
    ]
    return norms[0] if len(norms) == 1 else torch.cat(norms)


def add_squares(norms: Array, starts: Sequence[int]) -> Array:
    """Return the sums of the squares of norms in f64: of those from each start up to the next."""
    found: Array = np.add.reduceat(np.square(norms, dtype=np.float64), starts)
    return found
