"""Sending in a thread of its own, while the caller's thread receives and adds up.

Most of the time of a large exchange over fast links is spent in the kernel, which copies what is sent and received.
Where ranks have two CPUs each, the two copies run side by side.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from phalanx.collectives.flow import Outgoing
from phalanx.transport import Bell, Deadline, Epoch, Pending, SerialExecutor, wait_for_links


class Sender:
    """Sends what is outgoing, and rings ``has_sent`` when some of it has left or an error came."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._executor = SerialExecutor("phalanx sender")
        self.has_sent, self._has_more = Bell(), Bell()
        self._is_stopped = False
        self._pending: Pending[None] | None = None

    @contextmanager
    def sending(self, outgoing: Sequence[Outgoing], deadline: Deadline) -> Iterator[None]:
        """Send in the background what is put into ``outgoing``; at the end all has left, unless there is an error."""
        self._is_stopped = False
        pending = self._pending = self._executor.submit("a message", self._send, outgoing, deadline)
        try:
            yield
        except BaseException:
            self._is_stopped = True
            self._has_more.ring()
            raise
        finally:
            pending.wait_until_done()
        pending.wait()

    def wake(self) -> None:
        """Say that more was put into what is outgoing."""
        self._has_more.ring()

    def check(self) -> None:
        """Raise the error that ended the sending, if there is one. What has left until now needs no further ring."""
        self.has_sent.silence()
        if self._pending and self._pending.is_done:
            self._pending.wait()

    def close(self) -> None:
        """End the thread. Closing twice is harmless."""
        self._executor.close()
        self.has_sent.close()
        self._has_more.close()

    def _send(self, outgoing: Sequence[Outgoing], deadline: Deadline) -> None:
        try:
            while outgoing and not self._is_stopped and not deadline.has_passed:
                self._has_more.silence()
                has_advanced = False
                for each in outgoing:
                    has_advanced |= each.advance()
                outgoing = [each for each in outgoing if not each.is_done]
                if has_advanced:
                    self.has_sent.ring()
                elif outgoing:
                    full = [each.link for each in outgoing if each.waiting]
                    wait_for_links(full, {self._has_more: 1}, deadline, self._epoch)
        finally:
            self.has_sent.ring()
