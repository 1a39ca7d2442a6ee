"""Who is in the group, decided: messages and time go in, answers come out. No socket, no clock, no thread."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.errors import CollectiveMismatch
from phalanx.wire import (
    Ask,
    Cause,
    Failed,
    Hello,
    Leave,
    Left,
    Member,
    Message,
    Refused,
    Revoked,
    Waiting,
    Welcome,
    Wonder,
)

GRACE_S = 0.25
"""How long an accusation waits for better evidence: the accused rank's own connection to close, or answers to come."""


_LONGEST_WORDS = 4096


@dataclass(frozen=True, slots=True)
class Say:
    """Send ``message`` to the worker behind ``connection``."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """Hang up on the worker behind ``connection``."""

    connection: int


Decision = Say | Drop


@dataclass(slots=True)
class _Suspicion:
    """What one rank wonders, or said of another, until there is a verdict."""

    accuser: int
    said: Failed | None  # None: it only wonders
    due: float
    waits: dict[int, Waiting] = field(default_factory=dict)


class Membership:
    """The coordinator's state: who has come, which epoch they are in, and whether it still holds.

    ``size`` may be None: then the first worker says how many there will be.
    """

    def __init__(self, size: int | None, job: str, key: bytes) -> None:
        self.epoch = 1
        self._size = size
        self._job = job
        self._key = key
        self._joining: dict[int, Hello] = {}
        self._ranks: dict[int, int] = {}  # by connection, once the group is complete
        self._is_complete = False
        self._left: set[int] = set()
        self._suspicion: _Suspicion | None = None
        self._verdict: Revoked | None = None

    @property
    def next_tick(self) -> float | None:
        """When ``tick`` has something to do, if ever."""
        return None if self._suspicion is None or self._verdict else self._suspicion.due

    def hear(self, connection: int, message: Message, now: float) -> list[Decision]:
        """What follows from a message."""
        if isinstance(message, Hello):
            return self._hear_hello(connection, message)
        rank = self._ranks.get(connection)
        if rank is None:
            return [Say(connection, Refused(reason="say hello first")), Drop(connection)]
        if isinstance(message, Leave):
            self._left.add(rank)
            return [Say(other, Left(rank=rank)) for other in self._ranks if other != connection]
        if isinstance(message, Waiting) and self._suspicion:
            self._suspicion.waits[rank] = message
        if isinstance(message, Wonder) and not self._suspicion and not self._verdict:
            return self._suspect(rank, None, now)
        if isinstance(message, Failed) and not self._verdict:
            return self._hear_accusation(rank, message, now)
        return []

    def hang_up(self, connection: int) -> list[Decision]:
        """What follows when a connection closed."""
        self._joining.pop(connection, None)
        rank = self._ranks.pop(connection, None)
        if rank is None or rank in self._left:
            return []
        return self._revoke(Cause.LOST, rank, f"rank {rank} went away: its connection to the coordinator closed")

    def tick(self, now: float) -> list[Decision]:
        """What follows from the time."""
        suspicion = self._suspicion
        if suspicion is None or now < suspicion.due or self._verdict:
            return []
        self._suspicion = None
        if mismatch := disagreement(suspicion.waits):
            odd, words = mismatch
            return self._revoke(Cause.DISAGREED, odd, words)
        said = suspicion.said
        if said is None:
            return []
        if said.cause is Cause.STALLED:
            waits = {rank: waiting.ranks for rank, waiting in suspicion.waits.items()}
            culprit = blame(suspicion.accuser, said.rank, waits)
            why = "it answers nobody" if culprit not in waits else "it is not in that call"
            return self._revoke(Cause.STALLED, culprit, f"{said.words}; rank {culprit} holds everybody up: {why}")
        return self._revoke(said.cause, said.rank, f"rank {suspicion.accuser}: {said.words}")

    def _hear_hello(self, connection: int, hello: Hello) -> list[Decision]:
        reason = self._objection(hello)
        if reason:
            return [Say(connection, Refused(reason=reason)), Drop(connection)]
        self._size = self._size or hello.size
        self._joining[connection] = hello
        if len(self._joining) != self._size:
            return []
        return self._form()

    def _objection(self, hello: Hello) -> str | None:
        if hello.job != self._job:
            return f"this is the coordinator of job {self._job!r}, not of {hello.job!r}"
        if self._is_complete:
            return "the group is complete: a program connects once, so keep its group or start the program again"
        size = self._size or hello.size
        if size is None:
            return "nobody said how many workers there will be"
        if hello.size not in (None, size):
            return f"you expect {hello.size} workers, the others {size}"
        if hello.rank is not None and hello.rank >= size:
            return f"there is no rank {hello.rank} among {size} workers"
        if hello.rank is not None and any(other.rank == hello.rank for other in self._joining.values()):
            return f"rank {hello.rank} is taken"
        return None

    def _form(self) -> list[Decision]:
        wanted = {hello.rank for hello in self._joining.values()}
        free = iter([rank for rank in range(len(self._joining)) if rank not in wanted])
        members = []
        for connection, hello in self._joining.items():
            rank = next(free) if hello.rank is None else hello.rank
            self._ranks[connection] = rank
            members.append(Member(rank=rank, host=hello.host, addresses=hello.addresses, pid=hello.pid))
        self._is_complete = True
        members.sort(key=lambda member: member.rank)
        self._joining.clear()
        return [
            Say(connection, Welcome(epoch=self.epoch, rank=rank, key=self._key, members=tuple(members)))
            for connection, rank in self._ranks.items()
        ]

    def _hear_accusation(self, rank: int, said: Failed, now: float) -> list[Decision]:
        if said.cause in (Cause.DISAGREED, Cause.RAISED):
            return self._revoke(said.cause, said.rank, said.words)
        if said.rank in self._left:
            return self._revoke(Cause.LEFT, said.rank, f"rank {said.rank} left the group, and rank {rank} needed it")
        if self._suspicion and self._suspicion.said:
            return []
        return self._suspect(rank, said, now)

    def _suspect(self, rank: int, said: Failed | None, now: float) -> list[Decision]:
        """Ask everybody what they wait for, and decide when they have had time to answer."""
        self._suspicion = _Suspicion(rank, said, now + GRACE_S)
        return [Say(connection, Ask()) for connection in self._ranks]

    def _revoke(self, cause: Cause, rank: int, words: str) -> list[Decision]:
        if self._verdict:
            return []
        self._verdict = Revoked(epoch=self.epoch, cause=cause, rank=rank, words=words[:_LONGEST_WORDS])
        return [Say(connection, self._verdict) for connection in self._ranks]


def disagreement(waits: Mapping[int, Waiting]) -> tuple[int, str] | None:
    """The odd rank among those in the same call of the same group who mean different things by it, and the words."""
    calls: dict[tuple[str, int], dict[int, str]] = {}
    for rank, waiting in waits.items():
        if waiting.group:
            calls.setdefault((waiting.group, waiting.sequence), {})[rank] = waiting.words
    for words_of in calls.values():
        counts = Counter(words_of.values())
        if len(counts) > 1:
            odd = min(words_of, key=lambda rank: (counts[words_of[rank]], rank))
            other = next(rank for rank in words_of if words_of[rank] != words_of[odd])
            return odd, str(CollectiveMismatch.between(odd, words_of[odd], other, words_of[other]))
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
