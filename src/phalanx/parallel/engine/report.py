"""What a step came to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a step.

    ``norm`` is the norm of the gradient before clipping, ``digest`` the digest of all weights and buffers before the
    step. Of the time, ``compute_s`` was spent on lanes and the optimizer, ``wait_s`` on waiting for other ranks, and
    ``exchange_s`` on the rest of the exchange. ``lanes_s`` is how long the slowest rank computed lanes; if members of
    an elastic run were lost, those that it computed after the last loss.
    """

    step: int
    loss: float
    norm: float
    digest: bytes
    wants_stop: bool
    compute_s: float
    exchange_s: float
    wait_s: float
    lanes_s: float
