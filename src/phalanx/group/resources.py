"""What a group gives back when it is closed or dropped."""

import os
import threading
from collections.abc import Callable

from phalanx.collectives import Team
from phalanx.group.operations import Channel
from phalanx.transport import SerialExecutor


class Resources:
    """The threads, links and memory of a group. It has no reference to the group, so that the group can be dropped."""

    def __init__(self, team: Team, leave: Callable[[], None]) -> None:
        self.afterwards: list[Callable[[], Callable[[], None] | None]] = []
        self._team = team
        self._leave = leave
        self._executors: dict[Channel | None, SerialExecutor] = {}
        self._pid = os.getpid()

    @property
    def is_copy(self) -> bool:
        """Whether this process is a forked child, which must not close what its parent uses."""
        return os.getpid() != self._pid

    def executor(self, channel: Channel | None, rank: int) -> SerialExecutor:
        """Return the executor of a channel, or of the collectives if the channel is None."""
        found = self._executors.get(channel)
        if found is None:
            found = self._executors.setdefault(channel, SerialExecutor(f"phalanx-exchange-{rank}"))
        return found

    def close(self) -> None:
        """Finish all calls, leave the group, and close the links."""
        for executor in self._executors.values():
            executor.close()
        self._leave()  # before the links close, so that others hear it from the coordinator first
        self._team.close()
        for find in self.afterwards:
            close = find()
            if close is not None:
                close()

    def close_beside(self) -> None:
        """Close in a new thread: the group may have been dropped in a thread that ``close`` waits for."""
        if not self.is_copy:
            threading.Thread(target=self.close, name="phalanx-leave").start()
