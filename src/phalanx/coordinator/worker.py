"""One worker as the coordinator knows it, and what can be decided about it alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.buffers import even_parts
from phalanx.coordinator.terms import Terms
from phalanx.wire import Hello, Member

NO_RANK = -1


@dataclass(slots=True)
class Worker:
    """Somebody who said hello; ``rank`` is that in the present epoch, ``step`` the next one of the state it holds."""

    connection: int
    hello: Hello
    heard_at: float
    step: int
    rank: int = NO_RANK
    has_left: bool = False

    @property
    def title(self) -> str:
        """What to call it."""
        return "a worker that waited" if self.rank == NO_RANK else f"rank {self.rank}"

    def silence(self, now: float) -> str:
        """Why it is given up when nothing is heard of it."""
        silence = f"nothing was heard of it for {now - self.heard_at:.1f} s"
        return f"{self.title} was given up: {silence}, so it is stopped, or its network is cut"


def objection(hello: Hello, present: Sequence[Worker], terms: Terms) -> str | None:
    """Why a worker does not fit to those who are there, if it does not."""
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
        return f"rank {hello.rank} is taken: ask for another one, or for none"
    if any(other.lanes != hello.lanes for other in others):
        theirs = others[0].lanes or "none"
        return f"you train with {hello.lanes or 'no'} lanes, the others with {theirs}: start all with the same config"
    return None


def assign_ranks(workers: Sequence[Worker]) -> dict[int, Worker]:
    """Who gets which rank: the one it asks for if there is such a one, the others in order."""
    wanted = {each.hello.rank: each for each in workers if each.hello.rank is not None}
    settled = {rank: each for rank, each in wanted.items() if rank < len(workers)}
    free = iter(rank for rank in range(len(workers)) if rank not in settled)
    seated = {each.connection for each in settled.values()}
    rest = {next(free): each for each in workers if each.connection not in seated}
    return dict(sorted((settled | rest).items()))


def share_lanes(lanes: int | None, size: int) -> list[tuple[int, int]]:
    """Which lanes each of ``size`` ranks computes: from, and up to but not including."""
    return [(part.start, part.stop) for part in even_parts(lanes or 0, size)]


def describe_members(ranks: Mapping[int, Worker], lanes: int | None) -> tuple[Member, ...]:
    """What everybody is told about the members of an epoch."""
    shares = share_lanes(lanes, len(ranks))
    return tuple(
        Member(
            rank=rank,
            host=each.hello.host,
            addresses=each.hello.addresses,
            pid=each.hello.pid,
            lanes=shares[rank],
            step=each.step,
        )
        for rank, each in ranks.items()
    )
