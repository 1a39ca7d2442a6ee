"""Notes that clients leave for each other at the coordinator, which does not read them."""

from phalanx.coordinator.decision import Decision, Say, refuse
from phalanx.wire import PostedNote

_MOST_AUTHORS = 64
_MOST_NOTES = 256  # of one author: more than the phases of a check of so many machines


class Noticeboard:
    """All notes of the clients that are connected now, by connection."""

    def __init__(self) -> None:
        self._notes: dict[int, list[bytes]] = {}

    def hear(self, connection: int, note: bytes) -> list[Decision]:
        """Tell all authors of a note. A new author is told all earlier ones first. An empty note only asks the time."""
        if not note:
            return [Say((connection,), PostedNote(connection, note))]
        if connection not in self._notes and len(self._notes) == _MOST_AUTHORS:
            return refuse(connection, f"{_MOST_AUTHORS} others post notes here already: try again when they are done")
        if len(self._notes.get(connection, ())) == _MOST_NOTES:
            return refuse(connection, f"it has posted {_MOST_NOTES} notes, which is the most")
        earlier: list[Decision] = []
        if connection not in self._notes:
            notes = [PostedNote(author, each) for author, all_of_it in self._notes.items() for each in all_of_it]
            earlier = [Say((connection,), each) for each in notes]
        self._notes.setdefault(connection, []).append(note)
        return [*earlier, Say(tuple(self._notes), PostedNote(connection, note))]

    def hang_up(self, connection: int) -> list[Decision]:
        """Forget the notes of a connection that closed, and tell the other authors."""
        if self._notes.pop(connection, None) is None or not self._notes:
            return []
        return [Say(tuple(self._notes), PostedNote(connection, None))]
