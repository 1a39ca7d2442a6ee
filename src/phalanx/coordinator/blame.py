"""Whose fault a stall is: decided from who waits for whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.errors import CollectiveMismatch
from phalanx.wire import Cause, Failed, Waiting, odd_one_out

GRACE_S = 0.25
"""How long an accusation waits for better evidence: the accused rank's own connection to close, or answers to come."""


LONGEST_WORDS = 4000
"""A message holds 4096 characters: this leaves room for what is said before somebody else's words."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is to blame for what."""

    cause: Cause
    rank: int
    words: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", self.words[:LONGEST_WORDS])


@dataclass(slots=True)
class Inquiry:
    """Everybody was asked whom they wait for, because one rank accused another, or wonders, or somebody looks."""

    due: float
    accuser: int | None = None
    said: Failed | None = None
    waits: dict[int, Waiting] = field(default_factory=dict)
    lookers: list[int] = field(default_factory=list)

    def verdict(self) -> Verdict | None:
        """What the answers amount to; None if nobody is to blame."""
        if mismatch := disagreement(self.waits):
            return mismatch
        said = self.said
        if said is None or self.accuser is None:
            return None
        if said.cause is not Cause.STALLED:
            return Verdict(said.cause, said.rank, f"rank {self.accuser}: {said.words}")
        waits = {rank: waiting.ranks for rank, waiting in self.waits.items()}
        culprit = blame(self.accuser, said.rank, waits)
        why = "it answers nobody" if culprit not in waits else "it is not in that call"
        return Verdict(Cause.STALLED, culprit, f"{said.words}; rank {culprit} holds everybody up: {why}")


def disagreement(waits: Mapping[int, Waiting]) -> Verdict | None:
    """The odd rank among those in the same call of the same group who mean different things by it."""
    calls: dict[tuple[str, int], dict[int, str]] = {}
    for rank, waiting in waits.items():
        if waiting.group:
            calls.setdefault((waiting.group, waiting.sequence), {})[rank] = waiting.words
    for words_of in calls.values():
        if odd := odd_one_out(words_of):
            rank, other = odd
            words = str(CollectiveMismatch.between(rank, words_of[rank], other, words_of[other]))
            return Verdict(Cause.DISAGREED, rank, words)
    return None


def blame(accuser: int, accused: int, waits: Mapping[int, Sequence[int]]) -> int:
    """The rank that holds everybody up: follow who waits for whom to the one that waits for nobody, or does not answer.

    ``waits`` has the ranks that answered. If they wait in a circle, the accused rank stays accused.
    """
    seen = {accuser}
    rank = accused
    while waits.get(rank):
        if rank in seen:
            return accused
        seen.add(rank)
        silent = [other for other in waits[rank] if other not in waits]
        rank = (silent or list(waits[rank]))[0]
    return rank
