"""Finds why a run failed, from the way in which its workers ended."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

_TRACEBACK = "Traceback (most recent call last)"
_LAST_LINES = 20
_CONSEQUENCES = tuple(f"phalanx.errors.{name}: " for name in ("PeerLost", "EpochChanged", "RemoteError"))


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a worker ended: its exit code, or minus the signal that killed it, and the last of what it wrote to stderr.

    ``at`` is when it ended; ``was_stopped`` says that the launcher was stopping the workers by then.
    """

    rank: int
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
    def is_consequence(self) -> bool:
        """Whether this worker failed only because another rank failed."""
        last = self.stderr.rstrip().rpartition("\n")[2]
        named = {int(rank) for rank in re.findall(r"\b(?:rank|worker) (\d+)", last)}
        return last.startswith(_CONSEQUENCES) and bool(named - {self.rank})


def first_failure(ends: Sequence[End]) -> End | None:
    """Return the worker that caused the run to fail: the first that failed by itself; None if no worker failed.

    Workers that the launcher stopped, or that failed because another rank failed, count only if there are no others.
    """
    failed = [end for end in ends if end.code != 0]
    return min(failed, key=lambda end: (end.was_stopped, end.is_consequence, end.at), default=None)


def report(end: End, noun: str = "rank") -> str:
    """Return the report about the worker that failed first."""
    words = f"phalanx: {noun} {end.rank} failed first: it {end.manner}"
    last = last_words(end.stderr)
    return f"{words}\n\n{last}\n" if last else f"{words} and wrote nothing to stderr\n"


def last_words(stderr: str) -> str:
    """Return the last traceback and what follows it, or the last lines if there is none."""
    start = stderr.rfind(_TRACEBACK)
    if start >= 0:
        return stderr[start:].rstrip()
    return "\n".join(stderr.rstrip().splitlines()[-_LAST_LINES:])
