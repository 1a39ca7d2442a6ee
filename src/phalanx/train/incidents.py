"""The incidents of a run: its events, put together to sentences about what happened to whom, and why."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.coordinator.events import (
    Admitted,
    CoordinatorStarted,
    EpochBegan,
    Event,
    Recovered,
    RunEnded,
    Seat,
    WorkerCame,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)

_MOST_NAMED = 8
_LONGEST_WORDS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One thing that happened to a run, in words, and how many members were lost, evicted, left or joined by it.

    ``recovery_s`` is the time from a loss or a restart to the next step that counted, ``stood_still_s`` the time that
    a newcomer took. ``starts`` and ``ends`` are 1 where the run began or was over. A minor incident is told only to
    people who want to read everything.
    """

    time: float
    step: int
    words: str
    is_minor: bool = False
    starts: int = 0
    ends: int = 0
    losses: int = 0
    evictions: int = 0
    leaves: int = 0
    joins: int = 0
    restarts: int = 0
    recovery_s: float | None = None
    stood_still_s: float | None = None


def find_incidents(events: Iterable[Event]) -> list[Incident]:
    """Return the incidents of a run in the order in which they began."""
    finder = _Finder()
    for event in events:
        finder.take(event)
    finder.give_up("No step has counted since.")
    return sorted(finder.found, key=lambda each: each.time)


class _Finder:
    """Collects what belongs together: all losses and restarts until the next step that counts are one incident."""

    def __init__(self) -> None:
        self.found: list[Incident] = []
        self._open: list[WorkerLost | WorkerEvicted | WorkerLeft | CoordinatorStarted] = []
        self._step = 0
        self._has_begun = False
        self._is_first = True

    def take(self, event: Event) -> None:
        match event:
            case CoordinatorStarted():
                self._take_start(event)
            case EpochBegan():
                self._take_epoch(event)
            case WorkerLost() | WorkerEvicted() | WorkerLeft() if event.rank is not None:
                self._open.append(event)
            case WorkerCame() | WorkerLost() | WorkerEvicted() | WorkerLeft():
                self.found.append(Incident(time=event.time, step=self._step, words=_describe(event), is_minor=True))
            case Recovered():
                self._step = event.step
                rest = (
                    f"Epoch {event.epoch} began with {count(event.members, 'worker')} after {seconds(event.epoch_s)}, "
                )
                self._conclude(f"{rest}and step {event.step} counted after {seconds(event.commit_s)}.", event.commit_s)
            case Admitted():
                self._take_newcomers(event)
            case RunEnded():
                self._take_end(event)
            case _:
                pass  # the end of an epoch has its reason before it, and its consequence after it

    def give_up(self, words: str) -> None:
        """Conclude what is open although no step counted; a worker that left is no incident then."""
        if any(not isinstance(each, WorkerLeft) for each in self._open):
            self._conclude(words, None)
        self._open.clear()

    def _take_start(self, event: CoordinatorStarted) -> None:
        if event.is_restart:
            self._open.append(event)
            return
        self.give_up("No step counted after that.")
        self._has_begun = False

    def _take_epoch(self, event: EpochBegan) -> None:
        self._step = event.step
        if self._has_begun or any(isinstance(each, CoordinatorStarted) for each in self._open):
            return
        verb = "began" if self._is_first else "was started again"
        words = (
            f"The run {verb} at step {event.step} with {count(len(event.members), 'worker')}{_places(event.members)}."
        )
        self._has_begun, self._is_first = True, False
        self.found.append(Incident(time=event.time, step=event.step, words=words, starts=1))

    def _take_newcomers(self, event: Admitted) -> None:
        self._step = event.step
        named = [f"rank {seat.rank}{_process(seat.pid, seat.host)}" for seat in event.newcomers[:_MOST_NAMED]]
        if more := len(event.newcomers) - len(named):
            named.append(f"{more} more")
        still = seconds(event.stood_still_s)
        words = f"{join(named)} joined at step {event.step}, and the others stood still for {still}"
        self.found.append(
            Incident(
                time=event.time,
                step=event.step,
                words=sentence(words),
                joins=len(event.newcomers),
                stood_still_s=event.stood_still_s,
            )
        )

    def _take_end(self, event: RunEnded) -> None:
        self._step = event.step
        self.give_up("No step counted after that.")
        verb = f"was halted at step {event.step}" if event.has_halted else "ended"
        words = sentence(f"the run {verb}: {_first_line(event.words)}")
        self.found.append(Incident(time=event.time, step=event.step, words=words, ends=1))

    def _conclude(self, rest: str, recovery_s: float | None) -> None:
        if not self._open:  # the beginning of the file is missing
            return
        number = Counter(type(each) for each in self._open)
        self.found.append(
            Incident(
                time=self._open[0].time,
                step=self._step,
                words=" ".join([*map(_describe, self._open[:_MOST_NAMED]), *_more(self._open[_MOST_NAMED:]), rest]),
                losses=number[WorkerLost],
                evictions=number[WorkerEvicted],
                leaves=number[WorkerLeft],
                restarts=number[CoordinatorStarted],
                recovery_s=recovery_s,
            )
        )
        self._open.clear()


def count(number: int, noun: str) -> str:
    """Return ``1 worker`` or ``2 workers``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def seconds(value: float) -> str:
    """Return a time as people say it."""
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes = value / 60
    return f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def join(words: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, or ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def sentence(words: str) -> str:
    """Return words that begin with a capital letter and end with a full stop."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def _describe(event: WorkerCame | WorkerLost | WorkerEvicted | WorkerLeft | CoordinatorStarted) -> str:
    if isinstance(event, CoordinatorStarted):
        return f"The coordinator was started again on its journal, at step {event.step}."
    who = "a worker" if event.rank is None else f"rank {event.rank}"
    who += _process(event.pid, event.host)
    match event:
        case WorkerCame():
            return sentence(f"{who} came, and waited to be admitted")
        case WorkerLost():
            return sentence(f"{who} was lost: {_first_line(event.words)}")
        case WorkerEvicted():
            return sentence(f"{who} was sent away: {_first_line(event.words)}")
        case WorkerLeft():
            return sentence(f"{who} left")


def _more(events: Sequence[object]) -> list[str]:
    return [f"{count(len(events), 'more incident')} followed before a step counted."] if events else []


def _process(pid: int, host: str) -> str:
    return f" (process {pid} on {_first_line(host)})" if host else f" (process {pid})"


def _places(members: Sequence[Seat]) -> str:
    """Return on which hosts the members are, if they said so."""
    hosts = Counter(seat.host for seat in members if seat.host)
    if list(hosts.values()) == [len(members)]:
        return f" on {_first_line(members[0].host)}"
    named = [f"{number} on {_first_line(host)}" for host, number in hosts.most_common(_MOST_NAMED)]
    if len(hosts) > len(named):
        named.append(f"others on {count(len(hosts) - len(named), 'more host')}")
    return f", {join(named)}" if named else ""


def _first_line(words: str) -> str:
    """Return words as they fit into a sentence: the first line, without control characters, and not too long."""
    line = words.partition("\n")[0]
    shown = "".join(letter if letter.isprintable() else "?" for letter in line[:_LONGEST_WORDS])
    return f"{shown}..." if len(line) > _LONGEST_WORDS else shown
