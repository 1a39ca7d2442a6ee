"""A collective written down: what one rank sends and receives, round by round.

Every rank of a group follows its own plan. What one rank sends in round k, its peer receives in round k. A
rank sends parts of its source buffer and receives into parts of its target buffer. In most collectives both are the
same buffer. A rank sends the elements that were there when the round began.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Then(Enum):
    """What becomes of the elements that a rank receives."""

    STORE = "store"
    """They are the new content."""

    FOLD = "fold"
    """They are the peer's contribution: when the round ends, all contributions to a part and what is already there
    are folded in the order of their ranks."""


@dataclass(frozen=True, slots=True)
class Send:
    """Elements that leave for a peer."""

    peer: int
    part: slice

    def __str__(self) -> str:
        return f"send {_bounds(self.part)} to rank {self.peer}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Elements that arrive from a peer."""

    peer: int
    part: slice
    then: Then = Then.STORE

    def __str__(self) -> str:
        return f"{self.then.value} {_bounds(self.part)} from rank {self.peer}"


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that travel at the same time: at most one to each peer, and one from each.

    After this round's folding the part ``finish`` holds the contributions of all ranks: a mean divides it there.
    """

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()
    finish: slice | None = None

    def __post_init__(self) -> None:
        for messages in (self.sends, self.receives):
            peers = [message.peer for message in messages]
            assert len(set(peers)) == len(peers), f"a round carries one message for each peer, not {peers}"

    @classmethod
    def of(cls, sends: Iterable[Send] = (), receives: Iterable[Receive] = (), finish: slice | None = None) -> "Round":
        """Return the round without its empty messages, which sender and receiver both leave out."""
        return cls(
            sends=tuple(send for send in sends if length_of(send.part)),
            receives=tuple(receive for receive in receives if length_of(receive.part)),
            finish=finish if finish is not None and length_of(finish) else None,
        )

    def __str__(self) -> str:
        words = [str(message) for message in (*self.sends, *self.receives)]
        if self.finish is not None:
            words.append(f"then {_bounds(self.finish)} is complete")
        return "; ".join(words) or "nothing to do"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank does in a collective. Plans are joined end to end with ``+``."""

    rounds: tuple[Round, ...] = ()

    @property
    def elements_sent(self) -> int:
        """The elements that this rank sends, all rounds together."""
        return sum(length_of(send.part) for each in self.rounds for send in each.sends)

    @property
    def folds(self) -> int:
        """The rounds in which this rank folds."""
        return sum(any(receive.then is Then.FOLD for receive in each.receives) for each in self.rounds)

    def __add__(self, later: "Plan") -> "Plan":
        return Plan(self.rounds + later.rounds)

    def __str__(self) -> str:
        head = f"{len(self.rounds)} rounds, {self.elements_sent} elements sent, folding in {self.folds} of them"
        return "\n".join([head, *(f"  round {index}: {each}" for index, each in enumerate(self.rounds))])


def length_of(part: slice) -> int:
    """Return the number of elements in ``part``."""
    length: int = part.stop - part.start
    return length


def _bounds(part: slice) -> str:
    return f"[{part.start}:{part.stop}]" if length_of(part) else "nothing"
