"""Finding out, through the store of a torch group, which rank has failed or is lost."""

import time
from contextlib import suppress

import msgspec
import torch.distributed as dist

from phalanx.errors import DeadlineExceeded, PeerLost, PhalanxError, RemoteError
from phalanx.transport import Deadline

_HALT, _ROLL, _HERE = "phalanx/halt", "phalanx/roll", "phalanx/here"
_ANSWER_S = 1.0  # ranks that wait look more often than this
_NAP_S = 0.05
_MOST_LETTERS = 200  # of torch's words: the rest is a stack of C++
_END = "a torch group cannot go on without it: start again, from a checkpoint if there is one"


class ToldFailure(msgspec.Struct, frozen=True):
    """What a rank whose program failed tells the others."""

    rank: int | None
    step: int
    words: str


class RollCall:
    """The ranks of a torch group, as they know of each other through its store.

    torch says that a call failed, but rarely because of whom. So the first rank whose call fails asks for a roll call.
    Every rank that is still there answers, and a rank that does not is lost. A group without a ``store`` (MPI) has no
    roll call, and its errors name no rank. A store that is lost raises torch's RuntimeError.
    """

    def __init__(self, store: "dist.Store | None", rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size

    def tell(self, error: RemoteError) -> None:
        """Tell all ranks that this rank's own program failed."""
        with suppress(RuntimeError):  # nobody is left to be told
            if self._store is not None:
                self._store.set(_HALT, msgspec.json.encode(ToldFailure(error.rank, error.step, str(error))))

    def look(self, what: str) -> PhalanxError | None:
        """Return why the call ``what``, which still waits, cannot end; None if no rank has said so."""
        if self._store is None:
            return None
        try:
            if told := self._heard():
                return told
            is_asked = self._store.check([_ROLL])
        except RuntimeError:
            return _lost_store(what)
        return self.find_lost(what, "another rank's call failed") if is_asked else None

    def find_lost(self, what: str, words: str, *, is_late: bool = False) -> PhalanxError:
        """Return the error for a call that failed with ``words``, or ``is_late``. It names the rank that is lost."""
        kind = DeadlineExceeded if is_late else PeerLost
        words = words.strip().partition("\n")[0][:_MOST_LETTERS]
        if self._store is None:
            return kind(f"{what} failed here ({words}), and MPI does not say who is lost: look for what ended first")
        try:
            missing = self._call_the_roll()
            if told := self._heard():
                return told
        except RuntimeError:
            return _lost_store(what)
        if not missing:
            return kind(f"{what} failed ({words}), although all {self._size} ranks answer: look at the network")
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        return kind(f"{who} of {self._size} was lost during {what} ({words}); {_END}", peer=missing[0])

    def _call_the_roll(self) -> list[int]:
        """Answer, and return the ranks that have not answered in time."""
        assert self._store is not None, "there is a roll only with a store"
        names = [f"{_HERE}/{rank}" for rank in range(self._size)]
        self._store.set(names[self._rank], b"1")
        self._store.set(_ROLL, b"1")
        deadline = Deadline.after(_ANSWER_S)
        missing = list(range(self._size))
        while missing and not deadline.has_passed:
            time.sleep(_NAP_S)
            missing = [rank for rank in missing if not self._store.check([names[rank]])]
        return missing

    def _heard(self) -> RemoteError | None:
        assert self._store is not None, "ranks hear of each other only with a store"
        if not self._store.check([_HALT]):
            return None
        told = msgspec.json.decode(self._store.get(_HALT), type=ToldFailure)
        return RemoteError(told.words, step=told.step, rank=told.rank)


def _lost_store(what: str) -> PeerLost:
    words = f"the store of the torch group was lost during {what}"
    return PeerLost(f"{words}: the process that has it, rank 0 or the launcher, has ended; look at what it wrote")
