"""What a coordinator must not forget: the lines of its journal, and what they amount to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from phalanx.wire import Commit


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, tag_field="line"):
    pass


class Formed(_Line, frozen=True):
    """An epoch began. Its number is never used again."""

    epoch: int
    step: int
    lanes: int
    names: tuple[str, ...]


class Committed(_Line, frozen=True):
    """A step counts."""

    epoch: int
    step: int
    digest: bytes
    loss: float | None  # None where it was not a number


class Ended(_Line, frozen=True):
    """The run is over."""

    words: str


Line = Formed | Committed | Ended


@dataclass(frozen=True, slots=True)
class Past:
    """What has happened so far: nothing, for a new run."""

    epoch: int = 0
    step: int = 0
    lanes: int | None = None
    names: frozenset[str] = frozenset()
    last: Commit | None = None
    ended: str | None = None

    def after(self, line: Line) -> "Past":
        """What has happened once ``line`` has."""
        match line:
            case Formed():
                names = frozenset(line.names)
                return replace(self, epoch=line.epoch, step=line.step, lanes=line.lanes, names=names, ended=None)
            case Committed():
                last = Commit(step=line.step, digest=line.digest)
                return replace(self, step=line.step + 1, last=last)
            case Ended():
                return replace(self, ended=line.words)


def recall(lines: Iterable[Line]) -> Past:
    """What all the lines of a journal amount to."""
    past = Past()
    for line in lines:
        past = past.after(line)
    return past
