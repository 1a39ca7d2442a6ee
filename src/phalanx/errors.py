"""Every exception Phalanx raises, cut by what the caller can do about it."""

import copy
from typing import Self


class PhalanxError(Exception):
    """The root: catch this to catch everything Phalanx raises."""


class ConfigError(PhalanxError, ValueError):
    """You asked for something impossible. Nothing was changed or sent: change the request."""


class OutOfResources(PhalanxError):  # noqa: N818 - named for what happened, as all of these are
    """This process has no descriptor or memory left for what a call needs; the message says how to get more."""


class TransportError(PhalanxError):
    """A connection failed. ``peer`` is the rank at the other end, or None before it is known."""

    def __init__(self, message: str, *, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class ConnectError(TransportError):
    """They were never reached: check the address and that they are running, then try again."""


class PeerLost(TransportError):  # noqa: N818
    """They went away: wait for the next epoch, or start again without them."""


class LinkClosed(TransportError):  # noqa: N818
    """You closed it: a mistake on this side."""


class DeadlineExceeded(TransportError, TimeoutError):  # noqa: N818
    """They are slow, stopped or unreachable: look at that rank, or allow more time."""


class ProtocolError(PhalanxError):
    """They speak another version, or there is a bug. ``peer`` is the rank at the other end, or None."""

    def __init__(self, message: str, *, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class BadFrame(ProtocolError):  # noqa: N818
    """Bytes that are no frame of ours."""


class CollectiveMismatch(ProtocolError):  # noqa: N818
    """Ranks disagree on operation, type, length or order: make them call the same things in the same order."""

    @classmethod
    def between(cls, rank: int, words: object, other: int, other_words: object) -> "CollectiveMismatch":
        """The disagreement of two ranks, in both sides' words; the first is the peer."""
        return cls(
            f"rank {rank} is in {words}, but rank {other} is in {other_words}: "
            "all ranks must make the same calls, of the same type and length, in the same order",
            peer=rank,
        )


class MembershipError(PhalanxError):
    """This rank cannot be, or no longer is, a member of the group."""


class JoinRefused(MembershipError):  # noqa: N818
    """The coordinator did not let this rank in; the message says why."""


class AuthError(MembershipError):
    """The token is wrong or missing; the message says on which side."""


class EpochChanged(MembershipError):  # noqa: N818
    """The group has changed: do the step again in the new one."""


class Evicted(MembershipError):  # noqa: N818
    """The coordinator has given this rank up: join again."""


class Halted(PhalanxError):  # noqa: N818
    """Training stopped everywhere, at one step, on purpose. ``step`` is that step; ``rank`` caused it, if one did."""

    def __init__(self, message: str, *, step: int = 0, rank: int | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.rank = rank

    def as_told(self, told: Exception | None) -> Self:
        """Return this error in the words in which all ranks were told it, if that is what they were told."""
        error = copy.copy(self)
        if type(told) is type(self):
            error.args = told.args
        return error


class NonFiniteGradient(Halted):
    """A gradient or a loss is not finite. Weights are untouched: look at those samples.

    ``lane``, ``parameter`` and ``samples`` say where it was first seen, as far as that is known. ``parameter`` is None
    if only the loss is not finite.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int = 0,
        rank: int | None = None,
        lane: int | None = None,
        parameter: str | None = None,
        samples: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message, step=step, rank=rank)
        self.lane = lane
        self.parameter = parameter
        self.samples = samples


class GradientCorrupted(Halted):
    """A gradient changed in memory while it was exchanged, or was added up wrongly. Weights are untouched.

    Look at the machine of ``rank``, or at all of them if it is None. ``parameter`` is the gradient's.
    """

    def __init__(self, message: str, *, step: int = 0, rank: int | None = None, parameter: str | None = None) -> None:
        super().__init__(message, step=step, rank=rank)
        self.parameter = parameter


class WeightsDiverged(Halted):
    """A rank's weights differ from the others': its memory, its build or its program is not like theirs.

    ``parameter`` is the first that differs, if that is known.
    """

    def __init__(self, message: str, *, step: int = 0, rank: int | None = None, parameter: str | None = None) -> None:
        super().__init__(message, step=step, rank=rank)
        self.parameter = parameter


class StateLost(Halted):
    """All workers that held some state of the run were lost at the same time: continue from the last checkpoint."""


class RemoteError(Halted):
    """Another rank's program failed; the message has its traceback."""
