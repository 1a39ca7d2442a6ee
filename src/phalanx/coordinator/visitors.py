"""What clients that are not workers ask of a run: what it is, what a rank's code does, and notes for each other."""

from phalanx.coordinator.decision import Decision, Record, Say, refuse
from phalanx.coordinator.noticeboard import Noticeboard
from phalanx.coordinator.record import Offered
from phalanx.coordinator.roster import Roster
from phalanx.wire import AskStacks, Describe, Described, Message, PostNote, Stacks

_MOST_WAITING = 64  # for the stacks of one worker


class Visitors:
    """Clients that are connected and are not workers. ``facts`` describe the run, as one of them has offered."""

    def __init__(self, roster: Roster, facts: bytes | None) -> None:
        self._roster = roster
        self._facts = facts
        self._noticeboard = Noticeboard()
        self._waiting: dict[int, tuple[int, ...]] = {}  # connections that wait for the stacks of a worker, by its own

    def hear(self, connection: int, message: Message) -> list[Decision]:
        """Return the answer to a question."""
        match message:
            case Describe(offers=offers):
                return self._describe(connection, offers)
            case PostNote(note=note):
                return self._noticeboard.hear(connection, note)
            case AskStacks(rank=rank):
                return self._ask_stacks(connection, rank)
            case _:
                return refuse(connection, "say hello first")

    def pass_on(self, worker: int, stacks: Stacks) -> list[Decision]:
        """Send the stacks of the worker with this connection to those who asked for them."""
        asked = self._waiting.pop(worker, ())
        return [Say(asked, stacks)] if asked else []

    def hang_up(self, connection: int) -> list[Decision]:
        """Forget a visitor, or a worker whose stacks somebody waits for."""
        self._waiting.pop(connection, None)
        return self._noticeboard.hang_up(connection)

    def _describe(self, connection: int, offers: bytes | None) -> list[Decision]:
        recorded: list[Decision] = []
        if self._facts is None and offers is not None:
            self._facts = offers
            recorded = [Record(Offered(offers))]
        return [*recorded, Say((connection,), Described(self._facts))]

    def _ask_stacks(self, connection: int, rank: int) -> list[Decision]:
        """Pass the question on to the worker. If it cannot answer, because it is stopped, nobody does."""
        worker = self._roster.members.get(rank)
        if worker is None:
            return [Say((connection,), Stacks(rank, f"there is no rank {rank} now"))]
        waiting = (*self._waiting.get(worker.connection, ()), connection)
        self._waiting[worker.connection] = waiting[-_MOST_WAITING:]
        return [Say((worker.connection,), AskStacks(rank))]
