"""The learning rate of every step."""

import math


def learning_rate(step: int, *, peak: float, least: float, warmup: int, steps: int) -> float:
    """Return the rate of ``step``, counted from 0: linear warm-up to ``peak``, then half a cosine down to ``least``.

    The last step of the warm-up has exactly ``peak`` (without warm-up, step 0). Step ``steps - 1`` and all later ones
    have exactly ``least``. The warm-up gives no step rate 0.
    """
    if step < warmup:
        return peak * ((step + 1) / warmup)
    top = max(warmup - 1, 0)
    way = min(1.0, (step - top) / max(steps - 1 - top, 1))
    share = (1 + math.cos(math.pi * way)) / 2
    return peak * share + least * (1 - share)  # exact where the share is 0 or 1, unlike least + share * range
