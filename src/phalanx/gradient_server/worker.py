"""A worker, as the gradient server sees it."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from phalanx.gradient_server.peer import Peer
from phalanx.wire import gradient

NOBODY = -1

Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class RemoteWorker:
    """A connection, and what came over it; its number is ``NOBODY`` until it has joined, which it must before ``due``.

    ``stated`` are the gradients that have begun to arrive, and ``complete`` those of them that have arrived.
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
        """Whether it is a member."""
        return self.number != NOBODY

    def __str__(self) -> str:
        who = f"worker {self.number}" if self.has_joined else "a stranger"
        return f"{who} ({', '.join(filter(None, [self.name, self.origin]))})"


Task = Generator[Sequence[RemoteWorker], None, Result]
"""Part of a call: it yields the workers that it waits for, and is resumed when something has happened."""
