"""The record of one step of a run."""

import math
import struct

import msgspec

from phalanx.errors import ConfigError


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed step: its results, and where its time went.

    ``loss_bits`` is ``float_bits(loss)``: people read the digits, comparisons use the bits.
    """

    step: int
    loss: float
    loss_bits: str
    norm: float
    lr: float
    digest: str
    tokens: int
    workers: int
    compute_s: float
    exchange_s: float
    wait_s: float
    seconds: float
    eval_loss: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.loss) and math.isfinite(self.norm)):
            raise ConfigError(
                f"step {self.step} has loss {self.loss} and norm {self.norm}: a committed step has finite ones"
            )
        if float_bits(self.loss) != self.loss_bits:
            raise ConfigError(f"loss {self.loss} of step {self.step} has bits {float_bits(self.loss)}")


def float_bits(value: float) -> str:
    """Return the 64 bits of a number as 16 hexadecimal digits, sign first."""
    return struct.pack(">d", value).hex()
