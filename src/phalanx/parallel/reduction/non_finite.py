"""The error for a gradient that is not finite."""

from phalanx.errors import NonFiniteGradient


def non_finite(
    step: int, *, parameter: str, rank: int | None, lane: int | None = None, samples: tuple[int, ...] = ()
) -> NonFiniteGradient:
    """Return the error that every rank raises. Without a ``rank``, all gradients are finite but their sum is not."""
    if rank is None:
        words = f"the sum of all gradients of {parameter} is not finite at step {step}, although each of them is"
        return NonFiniteGradient(
            f"{words}: scale the loss, or clip; weights are those before this step", step=step, parameter=parameter
        )
    where = "" if lane is None else f" in lane {lane}"
    shown = f" (samples {', '.join(map(str, samples))})" if samples else ""
    words = f"the gradient of {parameter} is not finite at step {step}: rank {rank} computed it{where}{shown}"
    return NonFiniteGradient(
        f"{words}; weights are those before this step",
        step=step,
        rank=rank,
        lane=lane,
        parameter=parameter,
        samples=samples,
    )
