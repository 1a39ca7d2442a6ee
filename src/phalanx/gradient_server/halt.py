"""Turning an error at the gradient server into a message to all workers, and back into an error there."""

from phalanx.errors import (
    CollectiveMismatch,
    DeadlineExceeded,
    Halted,
    NonFiniteGradient,
    PeerLost,
    PhalanxError,
    ProtocolError,
    RemoteError,
)
from phalanx.wire import gradient

_WORDS = 4000
_REASONS: dict[type[Exception], gradient.ServerHaltReason] = {
    NonFiniteGradient: gradient.ServerHaltReason.NON_FINITE,
    PeerLost: gradient.ServerHaltReason.LOST,
    DeadlineExceeded: gradient.ServerHaltReason.STALLED,
    ProtocolError: gradient.ServerHaltReason.DISAGREED,
    Exception: gradient.ServerHaltReason.FAILED,
}


def to_message(error: Exception, step: int) -> gradient.ServerHalt:
    """Return the message that tells workers about an error in this step."""
    reason = next(reason for kind, reason in _REASONS.items() if isinstance(error, kind))
    culprit = error.rank if isinstance(error, Halted) else getattr(error, "peer", None)
    words = str(error) if isinstance(error, PhalanxError) else f"the gradient server failed: {error!r}"
    return gradient.ServerHalt(step=step, reason=reason, worker=culprit, words=words[:_WORDS])


def to_error(halt: gradient.ServerHalt) -> PhalanxError:
    """Return the error that a worker raises for this message."""
    match halt.reason:
        case gradient.ServerHaltReason.NON_FINITE:
            return NonFiniteGradient(halt.words, step=halt.step, rank=halt.worker)
        case gradient.ServerHaltReason.LOST:
            return PeerLost(halt.words, peer=halt.worker)
        case gradient.ServerHaltReason.STALLED:
            return DeadlineExceeded(halt.words, peer=halt.worker)
        case gradient.ServerHaltReason.DISAGREED:
            return CollectiveMismatch(halt.words, peer=halt.worker)
        case gradient.ServerHaltReason.FAILED:
            return RemoteError(halt.words, step=halt.step, rank=halt.worker)
