"""Which rank is to blame for a stall, decided from which rank waits for which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.errors import CollectiveMismatch
from phalanx.wire import Cause, Failed, Waiting, odd_one_out

GRACE_S = 0.25
"""How long the coordinator waits for answers, or for the connection of the accused rank to close."""


LONGEST_WORDS = 4000
"""A message holds 4096 characters: this leaves room for a prefix before the words of another rank."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank that is to blame, and for what."""

    cause: Cause
    rank: int
    words: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", self.words[:LONGEST_WORDS])

    def at(self, whereabouts: str) -> "Culprit":
        """Return the same with words that also say which process the rank is, if that is known."""
        return replace(self, words=locate(self.words, self.rank, whereabouts))


def locate(words: str, rank: int, whereabouts: str) -> str:
    """Return words that also say which process a rank is, unless they do already or that is not known.

    This goes to the end of the first line: the lines of a traceback may follow.
    """
    if not whereabouts or whereabouts in words:
        return words
    first, line_break, rest = words.partition("\n")
    colon = ":" if first.endswith(":") else ""
    addition = f"; rank {rank} is {whereabouts}{colon}"
    return (first.removesuffix(":")[: LONGEST_WORDS - len(addition)] + addition + line_break + rest)[:LONGEST_WORDS]


@dataclass(slots=True)
class Inquiry:
    """A question to all workers, which ranks they wait for, and the answers so far.

    It is asked because a rank has waited for a while, because one rank accuses another, or for ``phalanx status``.
    """

    due: float
    accuser: int | None = None
    said: Failed | None = None
    waits: dict[int, Waiting] = field(default_factory=dict)
    lookers: list[int] = field(default_factory=list)

    def culprit(self) -> Culprit | None:
        """Return who is to blame according to the answers and the accusation, if there is one; None for nobody."""
        if mismatch := disagreement(self.waits):
            return mismatch
        said = self.said
        if said is None or self.accuser is None:
            return None
        if said.cause is not Cause.STALLED:
            return Culprit(said.cause, said.rank, f"rank {self.accuser}: {said.words}")
        waits = {rank: waiting.ranks for rank, waiting in self.waits.items()}
        rank = blame(self.accuser, said.rank, waits)
        why = "it does not answer" if rank not in waits else "it is not in that call"
        return Culprit(Cause.STALLED, rank, f"{said.words}; rank {rank} holds everybody up: {why}")


def find_stalled(
    waits: Mapping[int, Mapping[int, float]], idle_s: Mapping[int, float], stall_s: Mapping[int, float]
) -> Culprit | None:
    """Return a rank that does nothing although another rank has waited for it for its stall time; None if all is well.

    ``waits`` has for every rank how long it has waited for which others. ``idle_s`` says for how long a rank has been
    asked what it does and showed no sign of work. A rank that works, or waits itself, is not to blame.
    """
    for waiter, waited in waits.items():
        for rank, seconds in waited.items():
            if min(seconds, idle_s.get(rank, 0.0)) >= stall_s[waiter]:
                words = (
                    f"rank {waiter} has waited {seconds:.1f} s for rank {rank}, which does nothing: it is stopped, or "
                    f"stuck; look at that process, or allow more than {stall_s[waiter]:g} s with --stall or "
                    "PHALANX_STALL"
                )
                return Culprit(Cause.STALLED, rank, words)
    return None


def disagreement(waits: Mapping[int, Waiting]) -> Culprit | None:
    """Return the odd rank among ranks that are in the same call of the same group, but with different arguments."""
    calls: dict[tuple[str, int], dict[int, str]] = {}
    for rank, waiting in waits.items():
        if waiting.group:
            calls.setdefault((waiting.group, waiting.sequence), {})[rank] = waiting.words
    for words_of in calls.values():
        if odd := odd_one_out(words_of):
            rank, other = odd
            words = str(CollectiveMismatch.between(rank, words_of[rank], other, words_of[other]))
            return Culprit(Cause.DISAGREED, rank, words)
    return None


def blame(accuser: int, accused: int, waits: Mapping[int, Sequence[int]]) -> int:
    """Return the rank that holds everybody up: the end of the chain of waiting ranks that begins with the accused rank.

    That is a rank that waits for nobody or does not answer. ``waits`` has the ranks that answered. If they wait in a
    circle, the accused rank is to blame.
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
