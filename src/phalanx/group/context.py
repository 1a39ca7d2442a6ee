"""What a group has in common with its subgroups, and asking who is to blame when a call fails."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.errors import CollectiveMismatch, DeadlineExceeded, PeerLost, PhalanxError
from phalanx.transport import Connector, Deadline, Epoch
from phalanx.wire import Cause, Commit, Reason, Welcome

_VERDICT_S = 0.75  # how long a call that failed waits to hear from the coordinator who is really to blame


class Registry(Protocol):
    """Where a rank says how it gets on, and hears whether its steps count."""

    def report(self, epoch: Epoch, cause: Cause, rank: int, words: str) -> None:
        """Tell everybody why this rank cannot go on."""

    def done(self, epoch: Epoch, loss: float, digest: bytes) -> None:
        """Say that this rank has computed and exchanged its step."""

    def wait_for_word(self, deadline: Deadline) -> tuple[Welcome, Epoch] | Commit:
        """What the coordinator says next: that the step counts, or that another epoch begins."""

    def halt(self, reason: Reason, rank: int | None, words: str) -> None:
        """Stop everybody at this step."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What a group has in common with its subgroups; ``hosts`` says where each rank of the world runs."""

    connector: Connector
    epoch: Epoch
    registry: Registry | None
    hosts: Sequence[str]


def arbitrate(error: PhalanxError, context: GroupContext) -> PhalanxError:
    """Tell the others, and prefer the coordinator's word on who is to blame: it hears all sides."""
    epoch, registry = context.epoch, context.registry
    cause, peer = _cause_of(error), getattr(error, "peer", None)
    if epoch.error is None and registry and cause and peer is not None:
        registry.report(epoch, cause, peer, str(error))
        patience = Deadline.after(_VERDICT_S)
        while epoch.error is None and not patience.has_passed:
            time.sleep(0.001)
    return epoch.error or error


def _cause_of(error: PhalanxError) -> Cause | None:
    match error:
        case CollectiveMismatch():
            return Cause.DISAGREED
        case DeadlineExceeded():
            return Cause.STALLED
        case PeerLost():
            return Cause.LOST
        case _:
            return None
