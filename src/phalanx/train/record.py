"""The records of a run: one for each step, and its result."""

import math
import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from phalanx.errors import ConfigError

_Count = Annotated[int, Meta(ge=0, lt=2**62)]
_Seconds = Annotated[float, Meta(ge=0)]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed step: its results, and where its time went.

    ``loss_bits`` is ``float_bits(loss)``: people read the digits, comparisons use the bits. ``digest`` is that of all
    weights and buffers before the step. ``lanes_s`` is how long the slowest worker computed lanes: all of its lanes, or
    after the loss of a worker those that were missing. ``state_digest`` covers weights, buffers and optimizer state
    after the step, if a checkpoint was saved then.
    """

    step: _Count
    loss: float
    loss_bits: str
    norm: float
    lr: float
    digest: str
    tokens: _Count
    workers: _Count
    compute_s: _Seconds
    exchange_s: _Seconds
    wait_s: _Seconds
    seconds: _Seconds
    lanes_s: _Seconds = 0.0
    eval_loss: float | None = None
    state_digest: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.loss) and math.isfinite(self.norm)):
            raise ConfigError(
                f"step {self.step} has loss {self.loss} and norm {self.norm}: a committed step has finite ones"
            )
        if float_bits(self.loss) != self.loss_bits:
            raise ConfigError(f"loss {self.loss} of step {self.step} has bits {float_bits(self.loss)}")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a finished run. ``steps`` counts all its steps, also those before a resume.

    ``seconds`` and ``tokens_per_s`` are those of the last start alone.
    """

    steps: _Count
    loss: float
    eval_loss: float | None
    digest: str
    tokens_per_s: float
    workers: _Count
    seconds: float
    unigram_entropy: float


def float_bits(value: float) -> str:
    """Return the 64 bits of a number as 16 hexadecimal digits, sign first."""
    return struct.pack(">d", value).hex()
