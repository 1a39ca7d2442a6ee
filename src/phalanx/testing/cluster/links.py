"""The links between simulated workers: calls in which they exchange something, and how they wait for each other."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from enum import Enum, auto
from typing import Any, TypeVar

from phalanx.coordinator.participant import Move, Participant
from phalanx.testing.cluster.frames import Frame, Gone, Parcel
from phalanx.testing.cluster.laws import Laws, Violation
from phalanx.testing.cluster.stage import Job, Said, Stage, Takes
from phalanx.wire import Cause, Commit, Failed, Hello, Waiting, Welcome

T = TypeVar("T")
_LARGE = ("weights", "state")


class Waits(Enum):
    """What the main thread of a worker waits for."""

    COMPUTING = auto()
    PARCELS = auto()
    WORD = auto()
    NOTHING = auto()
    """It has halted: it only hears how that ends."""


Main = Generator[Waits, Commit | None, T]
"""What the main thread does. It yields whenever it waits."""


class EpochOver(Exception):  # noqa: N818 - named for what happened
    """What a call raises in an epoch that is over."""


class Dead(Exception):  # noqa: N818 - named for what happened
    """Ends the main thread of a worker that is no more."""


class LinkedWorker(ABC):
    """A worker with links to the others, and a main thread that makes calls with them."""

    def __init__(self, name: str, stage: Stage, laws: Laws, job: Job, peers: Mapping[str, "LinkedWorker"]) -> None:
        self.name = name
        self.is_alive = True
        self._stage, self._laws, self._job, self._peers = stage, laws, job, peers
        self._participant = Participant(Hello(name, (), 0, None, None, "", name=name, lanes=job.lanes))
        self._welcome: Welcome | None = None  # of the epoch that the main thread is in
        self._last_epoch = self._rank = 0
        self._calls = 0  # in this epoch
        self._arrived: dict[tuple[int, int], Parcel] = {}  # by call and rank
        self._early: list[Frame] = []  # of epochs that have not begun here
        self._attempt = 0  # what belongs to an earlier one is over
        self._waits_for: tuple[int, ...] = ()
        self._waits_since = 0.0
        self._gone: set[int] = set()
        self._waits = Waits.NOTHING
        self._main: Main[None] = self._live()

    @abstractmethod
    def tick(self) -> None:
        """Do what is due now."""

    @abstractmethod
    def crash(self) -> None:
        """End without a word."""

    @abstractmethod
    def _live(self) -> Main[None]:
        """Do what the main thread does."""

    @abstractmethod
    def _do(self, moves: Iterable[Move]) -> None:
        """Carry out what ``Participant`` decided."""

    @abstractmethod
    def _tell(self, said: Said) -> None:
        """Send something to the coordinator, if there is a connection."""

    # The main thread

    def _resume(self, word: Commit | None = None) -> None:
        """Let the main thread go on until it waits again."""
        self._step_main(lambda: self._main.send(word))

    def _interrupt(self) -> None:
        """Let the call that the main thread waits in raise that the epoch is over."""
        self._step_main(lambda: self._main.throw(EpochOver()))

    def _step_main(self, act: Callable[[], Waits]) -> None:
        self._attempt += 1
        self._waits, self._waits_for = Waits.NOTHING, ()
        try:
            self._waits = act()
        except (Dead, StopIteration):
            self._waits = Waits.NOTHING

    def _act(self, moves: Iterable[Move]) -> None:
        """Carry out what ``Participant`` decided, in the main thread."""
        self._do(moves)
        if not self.is_alive:
            raise Dead

    def _risk_death(self) -> None:
        """Crash here, if this worker is to."""
        if self._stage.dies(self):
            self.crash()
            raise Dead

    def _join_epoch(self, welcome: Welcome) -> None:
        self._welcome, self._last_epoch, self._rank = welcome, welcome.epoch, welcome.rank
        self._calls, self._gone = 0, set()
        self._arrived.clear()
        early, self._early = self._early, []
        for frame in early:
            self.receive(frame)

    # Calls

    def _gather(self, what: str, content: Hashable) -> Main[list[Any]]:  # Any: what the others sent
        """Return what all members send, by rank."""
        others = self._others()
        got = yield from self._exchange(what, dict.fromkeys(others, content), others)
        return [got.get(rank, content) for rank in range(len(others) + 1)]

    def _exchange(self, what: str, outgoing: Mapping[int, Hashable], sources: Iterable[int]) -> Main[dict[int, Any]]:
        """Send something to some ranks, and return what others send, by rank."""
        if not self._welcome:
            raise EpochOver
        self._calls += 1
        for rank, content in outgoing.items():
            self._risk_death()
            parcel = Parcel(self._welcome.epoch, self._rank, self._calls, what, content)
            name = self._welcome.members[rank].host
            if what in _LARGE:
                line = "transfer", self.name, name, parcel.epoch
                self._stage.post(Takes.TRANSFER, line, self, self._send, name, parcel)
            else:
                self._send(name, parcel)
        keys = [(self._calls, rank) for rank in sources]
        if missing := tuple(rank for call, rank in keys if (call, rank) not in self._arrived):
            self._wait_for(missing)
            yield Waits.PARCELS
        got = [self._arrived.pop(key) for key in keys]
        if other := next((each for each in got if each.what != what), None):
            raise Violation(f"{self.name} is in call {self._calls} for {what}, and was sent {other}")
        return {each.rank: each.content for each in got}

    def _others(self) -> tuple[int, ...]:
        members = self._welcome.members if self._welcome else ()
        return tuple(each.rank for each in members if each.rank != self._rank)

    def receive(self, frame: Frame) -> None:
        """Another worker sent something: what is of an epoch that is over here is refused."""
        if frame.epoch > self._last_epoch:
            self._early.append(frame)
        elif self._welcome and frame.epoch == self._welcome.epoch:
            if isinstance(frame, Gone):
                self._note_gone(frame.rank)
            else:
                self._arrived[frame.call, frame.rank] = frame
                self._go_on_if_complete()

    def _go_on_if_complete(self) -> None:
        if self._waits is not Waits.PARCELS:
            return
        self._waits_for = tuple(rank for rank in self._waits_for if (self._calls, rank) not in self._arrived)
        if not self._waits_for:
            self._resume()

    # Waiting

    def _explain(self, at_least_s: float = 0.0) -> None:
        """Tell the coordinator what this worker waits for, if it has waited for ``at_least_s``."""
        waited_s = self._stage.now - self._waits_since if self._waits_for else 0.0
        if waited_s >= at_least_s:
            waiting = Waiting(
                epoch=self._last_epoch,
                ranks=self._waits_for,
                waited_s=(waited_s,) * len(self._waits_for),
                group="step" if self._waits_for else "",
                sequence=self._calls,
                words=f"call {self._calls}" if self._waits_for else "",
                cpu_s=self._stage.now,  # a worker that is able to answer and does not wait is computing
            )
            self._tell(waiting)

    def _wait_for(self, ranks: tuple[int, ...]) -> None:
        self._waits_for, self._waits_since = ranks, self._stage.now
        self._accuse_the_gone()
        self._stage.at(self._stage.now + self._job.deadline_s, self, self._run_out, self._attempt)

    def _run_out(self, attempt: int) -> None:
        if attempt == self._attempt and self._waits_for:
            self._accuse(Cause.STALLED, self._waits_for[0])
            self._stage.at(self._stage.now + self._job.deadline_s, self, self._run_out, attempt)

    def _note_gone(self, rank: int) -> None:
        self._gone.add(rank)
        self._accuse_the_gone()

    def _accuse_the_gone(self) -> None:
        for rank in self._waits_for:
            if rank in self._gone:
                self._accuse(Cause.LOST, rank)
                return

    def _accuse(self, cause: Cause, rank: int) -> None:
        self._stage.count(f"accusations: {cause.value}")
        self._tell(Failed(self._last_epoch, cause, rank, f"rank {rank} did not send call {self._calls}"))

    def _send_all(self, frame: Frame) -> None:
        for each in self._welcome.members if self._welcome else ():
            if each.host != self.name:
                self._send(each.host, frame)

    def _send(self, name: str, frame: Frame) -> None:
        peer = self._peers[name]
        self._stage.carry(self, peer, ("link", self.name, name, frame.epoch), peer.receive, frame)
