"""Finds why a run failed, from the way in which its workers ended."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)  # those of other ranks are indented
_LAST_LINES = 20
_ERROR = re.compile(
    r"^phalanx\.errors\.(PeerLost|EpochChanged|ConnectError|DeadlineExceeded|CollectiveMismatch|BadFrame|Halted"
    r"|RemoteError|NonFiniteGradient|WeightsDiverged|GradientCorrupted|StateLost): (.*)",
    re.MULTILINE,
)
# How errors name the rank that they are about, the clearest words first. The last one may begin with who tells it.
_BLAME = (r"rank (\d+) holds everybody up", r"for rank (\d+), which does nothing", r"(?:rank|worker) (\d+)(?!\d*: )")


class Name(NamedTuple):
    """What to call a worker: "rank" and its rank or, as long as that is not known, "worker" and its number here."""

    noun: str
    number: int

    def __str__(self) -> str:
        return f"{self.noun} {self.number}"


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended: its exit code, or minus the signal that killed it, and the last of what it wrote to stderr.

    ``at`` is when it ended; ``was_stopped`` says that the launcher was stopping the workers by then.
    """

    name: Name
    code: int
    at: float
    stderr: str = ""
    was_stopped: bool = False

    @property
    def status(self) -> int:
        """The exit status as a shell shows it: the exit code, or 128 plus the signal."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def manner(self) -> str:
        """How the worker ended, for the report."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"

    @property
    def blamed(self) -> Name | None:
        """The rank that this worker's last words are about, if they are an error of Phalanx about a rank."""
        errors = list(_ERROR.finditer(self.stderr))
        if not errors or _TRACEBACK.search(self.stderr, errors[-1].end()):
            return None  # this one failed afterwards
        found = next(filter(None, (re.search(pattern, errors[-1][2]) for pattern in _BLAME)), None)
        return found and Name("rank", int(found[1]))

    @property
    def is_consequence(self) -> bool:
        """Whether this worker failed only because another rank failed."""
        return self.blamed not in (None, self.name)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which worker caused the run to fail, and which one's last words and exit status tell why."""

    culprit: End
    witness: End

    def __str__(self) -> str:
        words = f"phalanx: {self.culprit.name} failed first: "
        if self.witness is self.culprit:
            words += f"it {self.culprit.manner}"
        else:
            words += f"{self.witness.name} could not go on without it and {self.witness.manner}"
        last = last_words(self.witness.stderr)
        return f"{words}\n\n{last}\n" if last else f"{words} and wrote nothing to stderr\n"


def judge(ends: Sequence[End]) -> Verdict | None:
    """Return which worker failed first; None if no worker failed.

    That is the first one that failed by itself. If all failed because of another rank, and the launcher had to stop
    that one, it is that one. Otherwise it is the first that failed at all.
    """
    failed = sorted((end for end in ends if end.code != 0), key=_order)
    if not failed:
        return None
    witness = failed[0]
    if witness.is_consequence and not witness.was_stopped:
        for end in ends:
            if end.name == witness.blamed and end.was_stopped:
                return Verdict(end, witness)
    return Verdict(witness, witness)


def _order(end: End) -> tuple[bool, bool, float, bool]:
    """Return what to sort ends by. Of workers that ended at the same time, one that was killed comes first."""
    return end.was_stopped, end.is_consequence, end.at, end.code > 0


def last_words(stderr: str) -> str:
    """Return the last traceback and what follows it, or the last error of Phalanx, or else the last lines."""
    found = [*_TRACEBACK.finditer(stderr)] or [*_ERROR.finditer(stderr)]
    if found:
        return stderr[found[-1].start() :].rstrip()
    return "\n".join(stderr.rstrip().splitlines()[-_LAST_LINES:])
