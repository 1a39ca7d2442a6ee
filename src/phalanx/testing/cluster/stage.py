"""What the processes of a simulated cluster need: order, time and chance, however they are made."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeVar

from phalanx.coordinator.terms import Terms
from phalanx.wire import Message

T = TypeVar("T")
Act = Callable[..., None]


class Closed(Enum):
    """What is read from a connection after everything else."""

    CLOSED = auto()


CLOSED = Closed.CLOSED
Said = Message | Closed


class Takes(Enum):
    """What takes time."""

    COMPUTING = auto()
    NOTICING = auto()
    CALLING = auto()
    TRANSFER = auto()
    WRITING = auto()


class Actor(Protocol):
    """A process: things happen to it while it lives."""

    name: str
    is_alive: bool

    def tick(self) -> None:
        """Do what is due now."""

    def crash(self) -> None:
        """End without a word."""


class Caller(Actor, Protocol):
    """A process that called the coordinator."""

    def hear(self, connection: "SimulatedConnection", said: Said) -> None:
        """The coordinator said something."""


@dataclass(slots=True, eq=False)
class SimulatedConnection:
    """A worker's connection to the coordinator; when it ``is_cut``, nothing passes any more."""

    number: int
    worker: str
    life: int
    """Which life of the coordinator it was made in."""
    is_cut: bool = False

    def __repr__(self) -> str:
        return f"connection {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the workers are to do, and how long they wait for each other."""

    steps: int
    lanes: int
    terms: Terms
    deadline_s: float
    sizes: tuple[int, ...]
    """The sizes of the blocks of the optimizer state."""
    hosts: int = 1
    is_sharing: bool = False
    """Whether the workers share the optimizer: two hold each block."""
    is_paranoid: bool = False
    """Whether they compare their state before each step."""
    evaluates_every: int = 3
    """Behind which steps they evaluate."""
    spoiled_step: int | None = None
    """The step that gives no number, if any."""

    def share_hosts(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the ranks of each host. Workers come to hosts in turn."""
        found = [
            tuple(rank for rank, name in enumerate(names) if int(name[1:]) % self.hosts == host)
            for host in range(self.hosts)
        ]
        return [ranks for ranks in found if ranks]


class Stage(ABC):
    """Decides what happens next."""

    now = 0.0
    written_in = 0
    """The epoch in which the run directory was last written to."""

    @abstractmethod
    def post(self, takes: Takes, line: Hashable, actor: Actor, act: Act, *about: object) -> None:
        """Let something happen to ``actor`` a while later, in the order of its ``line``."""

    @abstractmethod
    def carry(self, source: Actor, target: Actor, line: Hashable, act: Act, *about: object) -> None:
        """Let something arrive from elsewhere, if the network allows."""

    @abstractmethod
    def at(self, when: float, actor: Actor, act: Act, *about: object) -> None:
        """Let something happen to ``actor`` at a time."""

    @abstractmethod
    def tick_at(self, actor: Actor, when: float | None) -> None:
        """Let ``actor`` tick at this time, and not at another that was asked for before."""

    @abstractmethod
    def can_reach(self, source: Actor, target: Actor) -> bool:
        """Whether a new connection can be made."""

    @abstractmethod
    def dies(self, actor: Actor) -> bool:
        """Whether ``actor`` crashes here, between two things that it does."""

    @abstractmethod
    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""

    @abstractmethod
    def count(self, what: str) -> None:
        """Count something that happened."""
