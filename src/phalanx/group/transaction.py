"""Committing a step: all ranks of a run commit it, or none does."""

from collections.abc import Callable
from typing import Self

from phalanx.errors import (
    DeadlineExceeded,
    EpochChanged,
    GradientCorrupted,
    Halted,
    NonFiniteGradient,
    RemoteError,
    StateLost,
    WeightsDiverged,
)
from phalanx.group.context import GroupContext, wait_for_verdict
from phalanx.transport import Deadline, Epoch
from phalanx.wire import Commit, Reason

_TOLD_S = 5.0  # how long a rank that halts waits to hear in which words the coordinator tells the others
_LOOK_S = 0.05  # how often to look whether the epoch still holds, while nothing is heard

_REASONS: dict[type[Halted], Reason] = {
    NonFiniteGradient: Reason.NON_FINITE,
    WeightsDiverged: Reason.DIVERGED,
    GradientCorrupted: Reason.CORRUPTED,
    StateLost: Reason.STATE_LOST,
    RemoteError: Reason.RAISED,
}


class RunMember:
    """A rank of a run without links to other ranks. It reports finished steps and learns whether they count."""

    def __init__(
        self,
        context: GroupContext,
        rank: int,
        size: int,
        lanes: int,
        timeout_s: float,
        stall_s: float,
        leave: Callable[[], None],
    ) -> None:
        self.rank, self.size, self.lanes = rank, size, lanes
        self.stall_s = stall_s
        self._context = context
        self._timeout_s = timeout_s
        self._leave = leave

    @property
    def epoch(self) -> Epoch:
        """This membership: it ends every wait when it is revoked."""
        return self._context.epoch

    def commit(self, loss: float, digest: bytes) -> None:
        """As ``Group.commit``."""
        commit(self._context, loss, digest, Deadline.after(self._timeout_s))

    def halt(self, error: Halted) -> Halted:
        """As ``Group.halt``."""
        return halt(self._context, error)

    def close(self) -> None:
        """Leave the run."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def commit(context: GroupContext, loss: float, digest: bytes, deadline: Deadline) -> None:
    """Report that this rank is done with its step, and return when the step counts on all ranks."""
    registry, epoch = context.registry, context.epoch
    if registry is None:
        return
    epoch.check()
    registry.done(epoch, loss, digest)
    while True:
        try:
            word = registry.wait_for_word(min(deadline, Deadline.after(_LOOK_S), key=lambda each: each.at))
        except DeadlineExceeded:
            epoch.check()
            if deadline.has_passed:
                raise
            continue
        if not isinstance(word, Commit):
            raise EpochChanged(f"epoch {epoch.number} ended before its step was committed: do the step again")
        return


def halt(context: GroupContext, error: Halted) -> Halted:
    """Tell all ranks to stop at this step, and why; return the error in the words that the coordinator tells all."""
    epoch, registry = context.epoch, context.registry
    if registry:
        registry.halt(epoch, _REASONS[type(error)], error.rank, str(error))
        wait_for_verdict(epoch, Deadline.after(_TOLD_S))
    epoch.revoke(error)
    return error.as_told(epoch.error)
