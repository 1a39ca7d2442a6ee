"""A worker, as the gradient server sees it, and the tasks that wait for workers."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from phalanx.gradient_server.peer import Peer
from phalanx.wire import gradient

NOBODY = -1
_MOST_AHEAD = 64  # gradients without elements, which need no room, and would be read without end

Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class RemoteWorker:
    """A connection from a worker. Its number is ``NOBODY`` until it has joined, which it must do before ``due``.

    ``stated`` are the gradients that have begun to arrive, and ``complete`` those of them that have fully arrived.
    """

    peer: Peer
    origin: str
    due: float
    number: int = NOBODY
    name: str = ""
    stated: deque[gradient.Gradient] = field(default_factory=deque)
    complete: deque[gradient.Gradient] = field(default_factory=deque)

    @property
    def has_joined(self) -> bool:
        """Whether the worker has joined."""
        return self.number != NOBODY

    @property
    def is_held(self) -> bool:
        """Whether nothing is read from it for now: there is no room for its elements, or it is far ahead."""
        return self.peer.is_held or len(self.stated) >= _MOST_AHEAD

    def __str__(self) -> str:
        who = f"worker {self.number}" if self.has_joined else "a stranger"
        return f"{who} ({', '.join(filter(None, [self.name, self.origin]))})"


Task = Generator[Sequence[RemoteWorker], None, Result]
"""A part of a call. It yields the workers that it waits for, and is resumed when something has arrived or left.

It yields nobody to let the server look after the workers during long work, and is resumed at once.
"""
