"""What the doctors of several machines have told each other, and what each of them does next."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from phalanx.doctor.facts import DoctorHello, MeasuredWay, decode_note
from phalanx.doctor.phases import Pair, plan_phases
from phalanx.errors import JoinRefused


class DoctorMeeting:
    """The meeting of ``count`` doctors, as the one with the number ``author`` sees it.

    It is complete when so many have introduced themselves. From then on, their places are fixed, in the order of their
    numbers, and all doctors know them alike.
    """

    def __init__(self, author: int, count: int) -> None:
        self._author = author
        self._count = count
        self._phases = plan_phases(count)
        self._read: dict[int, int] = {}  # how many notes of each author
        self._authors: list[int] = []
        self._introductions: dict[int, DoctorHello] = {}
        self._reports: dict[int, dict[int, MeasuredWay | None]] = {}
        self._gone: AbstractSet[int] = frozenset()
        self.is_complete = False

    def hear(self, notes: Mapping[int, Sequence[bytes]], gone: AbstractSet[int]) -> None:
        """Take in all notes so far. Raises JoinRefused if this doctor came too late."""
        for author, all_of_it in notes.items():
            known, self._read[author] = self._read.get(author, 0), len(all_of_it)
            for each in map(decode_note, all_of_it[known:]):
                if isinstance(each, DoctorHello):
                    self._introductions[author] = each
                else:
                    self._reports.setdefault(author, {})[each.phase] = each.way
        self._gone = frozenset(gone)
        if not self.is_complete:
            self._authors = sorted(author for author in self._introductions if author not in gone)
            if len(self._authors) >= self._count:
                del self._authors[self._count :]
                self.is_complete = True
                if self._author not in self._authors:
                    raise JoinRefused(f"{self._count} other machines are at it already")

    @property
    def own(self) -> int:
        """The place of this doctor."""
        return self._authors.index(self._author)

    @property
    def introductions(self) -> list[DoctorHello]:
        """What the doctors have said of their machines, by place."""
        return [self._introductions[author] for author in self._authors]

    def target(self, phase: int) -> int | None:
        """Return the place of the machine to connect to in a phase; None if there is none, or if it has gone."""
        found = next((target for source, target in self._phases[phase] if source == self.own), None)
        return None if found is None or self._authors[found] in self._gone else found

    def is_over(self, phase: int) -> bool:
        """Whether all doctors that are still there are done with a phase."""
        return all(author in self._gone or phase in self._reports.get(author, ()) for author in self._authors)

    def late(self, phase: int) -> list[int]:
        """Return the places of the doctors that are not done with a phase, or have gone before."""
        return [place for place, author in enumerate(self._authors) if phase not in self._reports.get(author, ())]

    @property
    def ways(self) -> dict[Pair, MeasuredWay]:
        """All ways that were measured, by the places of who connected and to whom."""
        return {
            pair: way
            for phase, pairs in enumerate(self._phases)
            for pair in pairs
            if (way := self._reports.get(self._authors[pair[0]], {}).get(phase)) is not None
        }
