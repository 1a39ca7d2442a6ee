"""A worker's decisions about its membership.

Messages and the time go in, decisions come out: no socket, no clock, no thread. A worker of a run outlives its
connection: it connects again, says which step it holds, and continues in the next epoch. A member of a plain group does
not: without the coordinator the group is over.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from phalanx.coordinator.terms import Terms
from phalanx.errors import (
    BadFrame,
    CollectiveMismatch,
    ConnectError,
    DeadlineExceeded,
    EpochChanged,
    Evicted,
    GradientCorrupted,
    Halted,
    JoinRefused,
    NonFiniteGradient,
    PeerLost,
    PhalanxError,
    ProtocolError,
    RemoteError,
    StateLost,
    WeightsDiverged,
)
from phalanx.wire import (
    Cause,
    Commit,
    Done,
    Evict,
    Halt,
    Heard,
    Hello,
    Holds,
    Leave,
    Message,
    Reason,
    Refused,
    Revoked,
    Welcome,
)

NO_EPOCH = 0
_FIRST_NAP_S = 0.05

REPORT_S = 1.0
"""After how long a worker tells the coordinator what it waits for, and how often from then on."""

_ENDINGS = {
    Cause.LOST: PeerLost,
    Cause.LEFT: PeerLost,
    Cause.RAISED: PeerLost,
    Cause.STALLED: DeadlineExceeded,
    Cause.DISAGREED: CollectiveMismatch,
    Cause.GARBLED: BadFrame,
}
_HALTS: dict[Reason, type[Halted]] = {
    Reason.NON_FINITE: NonFiniteGradient,
    Reason.DIVERGED: WeightsDiverged,
    Reason.CORRUPTED: GradientCorrupted,
    Reason.STATE_LOST: StateLost,
    Reason.RAISED: RemoteError,
}


@dataclass(frozen=True, slots=True)
class Tell:
    """Send ``message`` to the coordinator."""

    message: Message


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Connect to the coordinator again; ``reached`` or ``lost`` follows."""


@dataclass(frozen=True, slots=True)
class ReportWait:
    """Tell the coordinator what this worker waits for, if it has waited for ``REPORT_S``."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection to the coordinator; nothing follows."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an epoch: take its step."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Abandon:
    """End everything that waits in the epoch with ``error``: the epoch is over."""

    error: PhalanxError


@dataclass(frozen=True, slots=True)
class Apply:
    """Update the weights: the step that this worker was done with counts."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Stop:
    """End this worker's membership for good; ``error`` says why."""

    error: PhalanxError


Move = Tell | Reconnect | ReportWait | HangUp | Begin | Abandon | Apply | Stop


class Participant:
    """A worker's state. It begins connected: the first call is ``reached``.

    ``hello`` is what the worker says about itself; ``whom`` is what to call the coordinator in errors, and ``peer`` the
    rank that runs it, if a rank does.
    """

    def __init__(self, hello: Hello, *, whom: str = "the coordinator", peer: int | None = None) -> None:
        self.step = hello.step
        self.epoch = 0
        self._hello = hello
        self._whom = whom
        self._peer = peer
        self._terms = Terms()
        self._pending: bytes | None = None  # the digest of a step, until this worker knows whether it counts
        self._halting: Halt | None = None
        self._is_in = False
        self._is_reached = False
        self._has_ended = False
        self._next_report = 0.0
        self._away_since: float | None = None
        self._next_call: float | None = None
        self._nap_s = _FIRST_NAP_S

    @property
    def next_tick(self) -> float | None:
        """When ``tick`` has something to do; None if nothing is due."""
        if self._has_ended:
            return None
        if not self._is_reached:
            return self._next_call
        return self._next_report if self._is_in else None

    def reached(self, now: float) -> list[Move]:
        """Return what to do when the coordinator was reached."""
        if self._has_ended:
            return [HangUp()]
        self._is_reached = True
        self._next_report = now + REPORT_S
        again = [Tell(self._halting)] if self._halting else []  # it may not have arrived
        return [Tell(replace(self._hello, step=self.step, pending=self._pending)), *again]

    def lost(self, why: str, now: float) -> list[Move]:
        """Return what to do when the connection closed, or could not be made."""
        return self._call_again(PeerLost(f"{self._whom} went away: {why}", peer=self._peer), now)

    def tick(self, now: float) -> list[Move]:
        """Return what is due at this time."""
        if self._has_ended:
            return []
        if not self._is_reached:
            if self._next_call is None or now < self._next_call:
                return []
            self._next_call = None
            return [Reconnect()]
        if not self._is_in or now < self._next_report:
            return []
        self._next_report = now + REPORT_S
        return [ReportWait()]

    def hear(self, message: Message, now: float) -> list[Move]:
        """Return what to do about a message of the coordinator."""
        if self._has_ended:
            return []
        match message:
            case Heard(patience_s=patience_s):
                self._terms = Terms(patience_s=patience_s)
                self._away_since, self._nap_s = None, _FIRST_NAP_S
            case Welcome():
                return self._hear_welcome(message)
            case Commit():
                return self._hear_commit(message)
            case Revoked(epoch=self.epoch, cause=cause, rank=rank, words=words):
                is_plain = self._hello.lanes is None
                return self._abandon(_ENDINGS[cause](words, peer=rank) if is_plain else EpochChanged(words))
            case Refused(reason=reason):
                return [HangUp(), *self._stop(JoinRefused(f"{self._whom} refused this worker: {reason}"))]
            case Evict(words=words):
                return [HangUp(), *self._call_again(Evicted(f"{self._whom} removed this worker: {words}"), now)]
            case Halt(step=step, reason=reason, rank=rank, words=words):
                return [HangUp(), *self._stop(_HALTS.get(reason, Halted)(words, step=step, rank=rank))]
            case _:
                pass  # other messages do not change the membership
        return []

    def done(self, epoch: int, loss: float, digest: bytes) -> list[Move]:
        """Return what to do when this worker is done with its step; nothing, if the epoch is over."""
        if not self._is_in or epoch != self.epoch:
            return []
        self._pending = digest
        return [Tell(Done(epoch, self.step, loss, digest))]

    def hold(self, epoch: int, step: int) -> list[Move]:
        """Return what to do when this worker has got the state of the epoch's step from another worker."""
        self.step, self._pending = step, None
        return [Tell(Holds(epoch))] if epoch == self.epoch else []  # also after the end of the epoch

    def halt(self, epoch: int, reason: Reason, rank: int | None, words: str) -> list[Move]:
        """Return what to do to stop all workers, this one too, for something found in ``epoch``."""
        self._halting = Halt(self.step, reason, rank, words, epoch)
        return [Tell(self._halting)]

    def leave(self, *, is_over: bool = False) -> list[Move]:
        """Return what to do when this worker leaves; ``is_over`` if the run has come to its end."""
        self._has_ended = True
        return [Tell(Leave(is_over)), HangUp()]

    def _hear_welcome(self, welcome: Welcome) -> list[Move]:
        moves = self._abandon(EpochChanged(f"epoch {welcome.epoch} began"))
        self.epoch = welcome.epoch
        self._is_in, self._pending = True, None  # what was done in another epoch is done again in this one
        return [*moves, Begin(welcome)]

    def _hear_commit(self, commit: Commit) -> list[Move]:
        if commit.step != self.step or commit.digest != self._pending:
            words = (
                f"{self._whom} committed step {commit.step}, but this worker's step {self.step} has another number or "
                "digest: start it again from its checkpoint, with the coordinator of its own run"
            )
            return [HangUp(), *self._stop(ProtocolError(words))]
        self.step += 1
        self._pending = None
        return [Apply(commit)]

    def _call_again(self, why: PhalanxError, now: float) -> list[Move]:
        """Connect again in a run, for a while; end the membership in a plain group."""
        if self._has_ended:
            return []
        self._is_reached = False
        if self._hello.lanes is None:
            return self._stop(why)
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > self._terms.rejoin_s:
            words = (
                f"{why}, and did not take this worker back for {self._terms.rejoin_s:g} s; it holds step {self.step}"
            )
            return self._stop(ConnectError(f"{words}: start the coordinator again on its journal, then this worker"))
        self._next_call = now + self._nap_s
        self._nap_s = min(2 * self._nap_s, self._terms.longest_nap_s)
        return self._abandon(why)

    def _abandon(self, error: PhalanxError) -> list[Move]:
        was_in, self._is_in = self._is_in, False
        return [Abandon(error)] if was_in else []

    def _stop(self, error: PhalanxError) -> list[Move]:
        self._has_ended = True
        return [*self._abandon(error), Stop(error)]
