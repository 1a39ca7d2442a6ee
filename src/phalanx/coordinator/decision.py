"""What the coordinator decides to do, carried out in the order given."""

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.coordinator.record import Line
from phalanx.coordinator.worker import Worker
from phalanx.wire import Message, Refused


@dataclass(frozen=True, slots=True)
class Say:
    """Send ``message`` to the workers behind the connections ``to``."""

    to: tuple[int, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """Close ``connection``."""

    connection: int
    why: str


@dataclass(frozen=True, slots=True)
class Record:
    """Write ``line`` down for good, before anything that follows is carried out."""

    line: Line


Decision = Say | Drop | Record


def to(workers: Iterable[Worker]) -> tuple[int, ...]:
    """Return the connections of these workers."""
    return tuple(each.connection for each in workers)


def refuse(connection: int, reason: str) -> list[Decision]:
    """Refuse a worker: say why, and close its connection."""
    return [Say((connection,), Refused(reason)), Drop(connection, f"it was refused: {reason}")]
