"""What a group shares with its subgroups, and how it asks the coordinator who is to blame when a call fails."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.errors import BadFrame, CollectiveMismatch, DeadlineExceeded, PeerLost, PhalanxError
from phalanx.transport import Connector, Deadline, Epoch
from phalanx.wire import Cause, Commit, Reason, Welcome

_VERDICT_S = 0.75  # how long a call that failed waits to hear from the coordinator who is really to blame


class Registry(Protocol):
    """The coordinator, as a group uses it."""

    def report(self, epoch: Epoch, cause: Cause, rank: int, words: str) -> None:
        """Report why this rank cannot continue, and the ``rank`` that caused it."""

    def done(self, epoch: Epoch, loss: float, digest: bytes) -> None:
        """Report that this rank has computed and exchanged its step."""

    def wait_for_word(self, deadline: Deadline) -> tuple[Welcome, Epoch] | Commit:
        """Return the coordinator's next message: the step counts, or another epoch begins."""

    def halt(self, epoch: Epoch, reason: Reason, rank: int | None, words: str) -> None:
        """Stop all ranks at this step."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What a group shares with its subgroups.

    ``hosts`` has the host of each rank of the world. ``first_host`` is the name or address under which the others reach
    the machine of rank 0.
    """

    connector: Connector
    epoch: Epoch
    registry: Registry | None
    hosts: Sequence[str]
    first_host: str = "127.0.0.1"


def arbitrate(error: PhalanxError, context: GroupContext) -> PhalanxError:
    """Report an error, and return the coordinator's verdict, or else the error itself.

    The coordinator hears all ranks, so it knows better who is to blame.
    """
    epoch, registry = context.epoch, context.registry
    cause, peer = _cause_of(error), getattr(error, "peer", None)
    if epoch.error is None and registry and cause and peer is not None:
        registry.report(epoch, cause, peer, str(error))
        wait_for_verdict(epoch, Deadline.after(_VERDICT_S))
    return epoch.error or error


def report_death(context: GroupContext, rank: int) -> None:
    """Tell the coordinator that this rank has seen the process of another rank die."""
    if context.registry:
        context.registry.report(context.epoch, Cause.DIED, rank, f"rank {rank} went away: its process died")


def wait_for_verdict(epoch: Epoch, deadline: Deadline) -> None:
    """Return when the coordinator has ended the epoch, or at the deadline."""
    while epoch.error is None and not deadline.has_passed:
        time.sleep(0.001)


def _cause_of(error: PhalanxError) -> Cause | None:
    match error:
        case CollectiveMismatch():
            return Cause.DISAGREED
        case BadFrame():
            return Cause.GARBLED
        case DeadlineExceeded():
            return Cause.STALLED
        case PeerLost():
            return Cause.LOST
        case _:
            return None
