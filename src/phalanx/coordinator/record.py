"""The lines of the coordinator's journal, and the state of a run that follows from them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from phalanx.wire import Commit


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, tag_field="line"):
    pass


class Formed(_Line, frozen=True):
    """An epoch began with these workers. No later epoch has the same number."""

    epoch: int
    step: int
    lanes: int
    names: tuple[str, ...]


class Committed(_Line, frozen=True):
    """A step was committed."""

    epoch: int
    step: int
    digest: bytes
    loss: float | None  # None if it was not finite


class Ended(_Line, frozen=True):
    """The run is over."""

    words: str


class Offered(_Line, frozen=True):
    """Somebody said what the run is. Nobody can say anything else later."""

    facts: bytes


Line = Formed | Committed | Ended | Offered


@dataclass(frozen=True, slots=True)
class Past:
    """The state of a run according to its journal. A new run has the defaults."""

    epoch: int = 0
    step: int = 0
    lanes: int | None = None
    names: frozenset[str] = frozenset()
    last: Commit | None = None
    ended: str | None = None
    facts: bytes | None = None

    def after(self, line: Line) -> "Past":
        """Return the state after ``line`` was added to the journal."""
        match line:
            case Formed():
                names = frozenset(line.names)
                return replace(self, epoch=line.epoch, step=line.step, lanes=line.lanes, names=names, ended=None)
            case Committed():
                last = Commit(step=line.step, digest=line.digest)
                return replace(self, step=line.step + 1, last=last)
            case Ended():
                return replace(self, ended=line.words)
            case Offered():
                return replace(self, facts=line.facts)


def recall(lines: Iterable[Line]) -> Past:
    """Return the state of a run after all lines of its journal."""
    past = Past()
    for line in lines:
        past = past.after(line)
    return past
