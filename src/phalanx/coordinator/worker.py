"""One worker as the coordinator knows it, and decisions that concern one worker alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.buffers import own_lanes
from phalanx.coordinator.terms import Terms
from phalanx.wire import Hello, Member, Waiting

NO_RANK = -1
_BUSY = 0.02  # a process that uses this fraction of a processor is doing something


@dataclass(slots=True)
class Worker:
    """A worker that said Hello; ``rank`` is its rank in the present epoch, ``step`` the next step of its state.

    ``idle_since`` is the first question after which the worker showed no sign of work: it did not answer, or its
    process had used no processor time. It is None if the worker was not asked, or was last seen at work.
    """

    connection: int
    hello: Hello
    heard_at: float
    step: int
    rank: int = NO_RANK
    has_left: bool = False
    idle_since: float | None = None
    _answered_at: float | None = None
    _cpu_s: float = 0.0

    @property
    def title(self) -> str:
        """What to call this worker in messages."""
        return "a worker that waited" if self.rank == NO_RANK else f"rank {self.rank}"

    @property
    def whereabouts(self) -> str:
        """The process and the machine, as people know them; empty if the worker did not say."""
        host = self.hello.name.partition(":")[0]  # a name begins with it
        return f"process {self.hello.pid} on {host}" if host else ""

    def ask(self, now: float) -> None:
        """Note that this worker was asked what it waits for."""
        if self.idle_since is None:
            self.idle_since = now

    def answer(self, waiting: Waiting, now: float) -> None:
        """Note an answer: a worker that waits, or has used processor time since its last answer, is not idle."""
        before = self._answered_at
        is_busy = before is None or waiting.cpu_s - self._cpu_s >= _BUSY * (now - before)
        if waiting.words or is_busy:
            self.idle_since = None
        self._answered_at, self._cpu_s = now, waiting.cpu_s

    def idle_s(self, now: float) -> float:
        """Return for how long this worker has been asked and showed no sign of work."""
        return 0.0 if self.idle_since is None else now - self.idle_since


def objection(hello: Hello, present: Sequence[Worker], terms: Terms) -> str | None:
    """Return why a worker cannot be in one group with those who are present, or None if it can."""
    others = [each.hello for each in present]
    sizes = [terms.minimum if terms.minimum == terms.maximum else None, *(other.size for other in others), hello.size]
    size = next((each for each in sizes if each is not None), None)
    if hello.job != terms.job:
        return f"this is the coordinator of job {terms.job!r}, not of {hello.job!r}: look for yours at another address"
    if size is None and terms.minimum is None:
        return "nobody said how many workers there will be: tell the coordinator, or this worker, how many"
    if hello.size not in (None, size):
        return f"you expect {hello.size} workers, the others {size}: start all with the same number"
    if hello.rank is not None and size is not None and hello.rank >= size:
        return f"there is no rank {hello.rank} among {size} workers: ask for a lower one, or for none"
    if hello.rank is not None and any(other.rank == hello.rank for other in others):
        return (
            f"rank {hello.rank} is taken: ask for another one, or for none; "
            "a program that connects again has to close its group first"
        )
    if any(other.lanes != hello.lanes for other in others):
        theirs = others[0].lanes or "none"
        return f"you train with {hello.lanes or 'no'} lanes, the others with {theirs}: start all with the same config"
    return None


def assign_ranks(workers: Sequence[Worker]) -> dict[int, Worker]:
    """Return which worker gets which rank: the rank it asks for if that exists, the others in order."""
    wanted = {each.hello.rank: each for each in workers if each.hello.rank is not None}
    settled = {rank: each for rank, each in wanted.items() if rank < len(workers)}
    free = iter(rank for rank in range(len(workers)) if rank not in settled)
    seated = {each.connection for each in settled.values()}
    rest = {next(free): each for each in workers if each.connection not in seated}
    return dict(sorted((settled | rest).items()))


def lane_bounds(lanes: int | None, size: int, rank: int) -> tuple[int, int]:
    """Return the first lane of ``rank``, and the one after its last, as members are told."""
    own = own_lanes(lanes or 0, size, rank)
    return own.start, own.stop


def describe_members(ranks: Mapping[int, Worker], lanes: int | None) -> tuple[Member, ...]:
    """Return what every member of an epoch is told about all members."""
    return tuple(
        Member(
            rank=rank,
            host=each.hello.host,
            addresses=each.hello.addresses,
            pid=each.hello.pid,
            lanes=lane_bounds(lanes, len(ranks), rank),
            step=each.step,
            can_keep=each.hello.can_keep,
        )
        for rank, each in ranks.items()
    )
