"""Virtual time for a simulated cluster: a heap of things to come, and a network that can be cut."""

import heapq
import random
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from typing import TypeVar

from phalanx.testing.cluster.laws import Violation
from phalanx.testing.cluster.stage import Act, Actor, Stage, Takes

T = TypeVar("T")
_REMEMBERED = 40
_MOST_EVENTS = 60_000
_USUAL_S = {
    Takes.COMPUTING: 0.2,
    Takes.NOTICING: 0.02,
    Takes.CALLING: 0.02,
    Takes.TRANSFER: 0.2,
    Takes.WRITING: 2.0,
}
_NETWORK_S = 0.01
_RARE_FACTOR = 20  # now and then everything takes much longer

_Event = tuple[float, int, Actor, Act, tuple[object, ...]]


class VirtualTime(Stage):
    """Lets things happen in the order of their times, all of which come from one seed."""

    def __init__(self, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.chance = chance
        self.doomed: set[str] = set()  # who crashes at the next occasion
        self.doomed_on_entry: set[str] = set()  # who crashes at the next occasion after an epoch has begun
        self.events = 0
        self._heap: list[_Event] = []
        self._posted = 0
        self._latest: dict[Hashable, float] = {}  # in each line
        self._ticks: dict[str, float | None] = {}
        self._stopped: dict[str, list[_Event]] = {}
        self._cuts: dict[frozenset[str], tuple[float, bool]] = {}  # until when, and whether what is sent is lost
        self._broken: set[Hashable] = set()  # lines that lost something: what follows must not arrive without it
        self._last: deque[_Event] = deque(maxlen=_REMEMBERED)
        self._trace: list[tuple[float, str, str]] = []

    def run(self, until_s: float) -> None:
        """Let everything happen up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            event = heapq.heappop(heap)
            self.now, _, actor, act, about = event
            if actor.name in self._stopped:
                self._stopped[actor.name].append(event)
            elif actor.is_alive:
                self._happen(event, actor, act, about)
        self.now = until_s

    def _happen(self, event: _Event, actor: Actor, act: Act, about: tuple[object, ...]) -> None:
        self.events += 1
        if self.events > _MOST_EVENTS:
            raise Violation(f"there is no end: more than {_MOST_EVENTS} events")
        if act != self._tick:  # of which there are too many to see anything else
            self._last.append((self.now, *event[1:]))
        self._trace.append((self.now, actor.name, act.__name__))
        act(*about)

    @property
    def trace(self) -> str:
        """All that happened, one thing per line."""
        return "\n".join(f"{when!r} {name} {what}" for when, name, what in self._trace)

    def describe(self) -> str:
        """The last things that happened, for people."""
        lines = (f"{when:9.4f}  {actor} {act.__name__} {about}" for when, _, actor, act, about in self._last)
        return "\n".join(lines)

    # What the processes ask for

    def post(self, takes: Takes, line: Hashable, actor: Actor, act: Act, *about: object) -> None:
        """Let something happen to ``actor`` a while later, in the order of its ``line``."""
        self._push_in_line(self.now + self._draw(_USUAL_S[takes]), line, actor, act, about)

    def carry(self, source: Actor, target: Actor, line: Hashable, act: Act, *about: object) -> None:
        """Let something arrive from elsewhere, if the network allows."""
        start, is_lossy = self._cut_between(source, target) or (self.now, False)
        if is_lossy:
            self._broken.add(line)
        if line in self._broken:
            self.counts["messages lost"] += 1
            return
        self._push_in_line(start + self._draw(_NETWORK_S), line, target, act, about)

    def at(self, when: float, actor: Actor, act: Act, *about: object) -> None:
        """Let something happen to ``actor`` at a time, or now if it is overdue."""
        self._posted += 1
        heapq.heappush(self._heap, (max(when, self.now), self._posted, actor, act, about))

    def tick_at(self, actor: Actor, when: float | None) -> None:
        """Let ``actor`` tick at this time, and not at another that was asked for before."""
        if self._ticks.get(actor.name) != when:
            self._ticks[actor.name] = when
            if when is not None:
                self.at(when, actor, self._tick, actor, when)

    def can_reach(self, source: Actor, target: Actor) -> bool:
        """Whether a new connection can be made."""
        return self._cut_between(source, target) is None

    def dies(self, actor: Actor) -> bool:
        """Whether ``actor`` crashes here: if it is doomed, it soon does."""
        if actor.name not in self.doomed or self.chance.random() < 0.6:
            return False
        self.doomed.discard(actor.name)
        return True

    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""
        return self.chance.choice(choices)

    def count(self, what: str) -> None:
        """Count something that happened."""
        self.counts[what] += 1
        if what == "epochs":
            self.doomed |= self.doomed_on_entry
            self.doomed_on_entry.clear()

    # What faults ask for

    def stop(self, actor: Actor) -> None:
        """Let nothing happen to ``actor`` until it is continued."""
        self._stopped.setdefault(actor.name, [])

    def continue_(self, actor: Actor) -> None:
        """Let everything happen that piled up: first what was said to ``actor``, then what time brought."""
        piled = self._stopped.pop(actor.name, [])
        for _, _, target, act, about in sorted(piled, key=lambda event: event[3] == self._tick):
            self.at(self.now, target, act, *about)

    def cut(self, one: str, other: str, until_s: float, *, is_lossy: bool) -> None:
        """Part two processes for a while; what they send is lost, or comes later."""
        self._cuts[frozenset((one, other))] = until_s, is_lossy

    def _cut_between(self, one: Actor, other: Actor) -> tuple[float, bool] | None:
        if not self._cuts:
            return None
        cut = self._cuts.get(frozenset((one.name, other.name)))
        return cut if cut and cut[0] > self.now else None

    def _tick(self, actor: Actor, when: float) -> None:
        if self._ticks.get(actor.name) == when:
            self._ticks[actor.name] = None
            actor.tick()

    def _push_in_line(self, when: float, line: Hashable, actor: Actor, act: Act, about: tuple[object, ...]) -> None:
        when = max(when, self._latest.get(line, 0.0))
        self._latest[line] = when
        self.at(when, actor, act, *about)

    def _draw(self, usual_s: float) -> float:
        random_ = self.chance.random
        factor = random_()
        return usual_s * (factor if random_() > 0.02 else factor * _RARE_FACTOR)
