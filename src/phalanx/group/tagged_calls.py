"""Messages with tags, which keep no order with the other calls of a group."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from phalanx.buffers import Array
from phalanx.collectives import Call, Team
from phalanx.errors import PhalanxError
from phalanx.group.context import GroupContext, arbitrate
from phalanx.group.operations import Operations
from phalanx.group.resources import Resources
from phalanx.transport import Deadline, Pending

Result = TypeVar("Result")


class TaggedCalls(ABC):
    """What a group can do with messages that have tags."""

    _context: GroupContext
    _failure: PhalanxError | None
    _operations: Operations
    _resources: Resources
    _team: Team

    @abstractmethod
    def _begin(self, timeout_s: float | None) -> Deadline: ...

    def send_tagged_nowait(self, array: Array, to: int, tag: int, *, timeout_s: float | None = None) -> Pending[None]:
        """Begin to send an array to one peer, which calls ``recv_tagged_nowait`` with the same tag, type and length."""
        operation = self._operations.send_tagged(array, to)
        deadline = self._begin(timeout_s)
        executor = self._resources.executor(operation.channel, self._team.rank)
        call = Call(operation.signature, tag, deadline)
        return executor.submit(operation.signature, self._end_on_error, operation.perform, call)

    def recv_tagged_nowait(
        self, array: Array, source: int | None, tag: int, *, timeout_s: float | None = None
    ) -> Pending[int]:
        """Begin to receive an array with this tag from ``source``, or from any peer if that is None.

        The result is the rank that has sent it. Messages with other tags may be received before or after it.
        """
        signature, flat = self._operations.recv_tagged(array, source)
        return self._team.tagged.receive(Call(signature, tag, self._begin(timeout_s)), flat, source)

    def _end_on_error(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function outside of the order of calls; if it fails, the group has failed."""
        try:
            return function(*arguments)
        except PhalanxError as error:
            if self._failure is None:
                self._failure = arbitrate(error, self._context)
            raise copy.copy(self._failure) from None
