"""What a group gives back when it is closed or dropped."""

import os
import threading
from collections.abc import Callable

from phalanx.collectives import Team
from phalanx.group.operations import Channel
from phalanx.transport import SerialExecutor


class Resources:
    """What a group must give back: threads, links and memory. It knows nothing of the group, which may be dropped."""

    def __init__(self, team: Team, leave: Callable[[], None]) -> None:
        self.afterwards: list[Callable[[], Callable[[], None] | None]] = []
        self._team = team
        self._leave = leave
        self._executors: dict[Channel | None, SerialExecutor] = {}
        self._pid = os.getpid()

    @property
    def is_copy(self) -> bool:
        """Whether this is a forked child, which must not give back what its parent uses."""
        return os.getpid() != self._pid

    def executor(self, channel: Channel | None, rank: int) -> SerialExecutor:
        """Return the queue of a channel's operations; None is that of the collectives."""
        found = self._executors.get(channel)
        if found is None:
            found = self._executors.setdefault(channel, SerialExecutor(f"phalanx-exchange-{rank}"))
        return found

    def close(self) -> None:
        """Finish what was begun, leave, and hang up."""
        for executor in self._executors.values():
            executor.close()
        self._leave()  # before the links close: others are to hear it from the coordinator first
        self._team.close()
        for find in self.afterwards:
            close = find()
            if close is not None:
                close()

    def close_beside(self) -> None:
        """Close in a new thread, since the last reference may go in one that closing waits for."""
        if not self.is_copy:
            threading.Thread(target=self.close, name="phalanx-leave").start()
