"""The learning rate of every step."""

import math


def learning_rate(step: int, *, peak: float, least: float, warmup: int, steps: int) -> float:
    """Return the rate of ``step``, counted from 0: up to ``peak`` in a line, down to ``least`` in half a cosine.

    The last step of the warm-up has exactly ``peak`` (without one, step 0 has), and step ``steps - 1`` and those
    after it exactly ``least``. No step has rate 0 for the sake of the warm-up.
    """
    if step < warmup:
        return peak * ((step + 1) / warmup)
    top = max(warmup - 1, 0)
    way = min(1.0, (step - top) / max(steps - 1 - top, 1))
    share = (1 + math.cos(math.pi * way)) / 2
    return peak * share + least * (1 - share)  # exact where the share is 0 or 1, as least + share * range is not
