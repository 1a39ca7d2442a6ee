"""What the workers of a simulated cluster send each other. Everything names its epoch, as keys do in reality."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank contributes to a step of an epoch: the values of its lanes, in order."""

    epoch: int
    step: int
    rank: int
    lanes: tuple[int, int]
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AskState:
    """A rank that is behind asks for the state of its epoch's step."""

    epoch: int
    rank: int


@dataclass(frozen=True, slots=True)
class State:
    """The answer."""

    epoch: int
    rank: int
    step: int
    weights: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The link to a rank closed."""

    epoch: int
    rank: int


Frame = Piece | AskState | State | Gone
