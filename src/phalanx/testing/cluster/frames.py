"""What the workers of a simulated cluster send each other. Everything names its epoch, as keys do in reality."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one rank sends another in a call of an epoch's group. All ranks count their calls alike."""

    epoch: int
    rank: int
    call: int
    what: str
    content: Hashable


@dataclass(frozen=True, slots=True)
class Gone:
    """The link to a rank closed."""

    epoch: int
    rank: int


Frame = Parcel | Gone
