"""The error for a gradient or a loss that is not finite."""

from phalanx.errors import NonFiniteGradient


def non_finite(
    step: int, *, parameter: str | None, rank: int | None, lane: int | None = None, samples: tuple[int, ...] = ()
) -> NonFiniteGradient:
    """Return the error that every rank raises. Without a ``parameter``, all gradients are finite but the loss is not.

    Without a ``rank``, the gradients of all ranks are finite but their sum is not. Without either, everything was
    finite when it was computed again.
    """
    if rank is None and parameter is None:
        what, how = "the loss", " but is when it is computed again: suspect the machine, or a random loss"
    elif rank is None:
        what, how = f"the sum of all gradients of {parameter}", ", although each of them is: scale the loss, or clip"
    else:
        what = "the loss" if parameter is None else f"the gradient of {parameter}"
        where = "" if lane is None else f" in lane {lane}"
        shown = f" (samples {', '.join(map(str, samples))})" if samples else ""
        how = f": rank {rank} computed it{where}{shown}"
    return NonFiniteGradient(
        f"{what} is not finite at step {step}{how}; weights are those before this step",
        step=step,
        rank=rank,
        lane=lane,
        parameter=parameter,
        samples=samples,
    )
