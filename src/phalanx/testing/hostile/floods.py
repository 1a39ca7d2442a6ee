"""Workers of a gradient server that send without end."""

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count, repeat
from typing import Self

from phalanx.transport import Credentials, Deadline, call
from phalanx.wire import Address, Purpose, gradient

_BATCH = 256  # messages that are sent at once


def floods() -> dict[str, Callable[[], Iterable[bytes]]]:
    """Return, by what they are of, floods for a ``FloodingWorker``. The server has to answer its other workers.

    Gradients of steps to come are valid: the steps take place. The same gradient again is not.
    """
    return {"steps to come": _steps_to_come, "the same gradient": lambda: repeat(_empty_gradient(0) * _BATCH)}


class FloodingWorker:
    """A worker of a gradient server that joins, and then sends ``pieces`` in a thread, and reads nothing, until closed.

    Its gradients have no elements, so they need no room at the server.
    """

    def __init__(
        self,
        address: Address,
        pieces: Iterable[bytes],
        deadline: Deadline,
        *,
        credentials: Credentials = Credentials(),  # noqa: B008 - it is frozen
    ) -> None:
        self._socket = call([address], deadline, credentials, Purpose.STAR, whom="the gradient server")
        self._socket.settimeout(deadline.remaining_s())
        self._socket.sendall(gradient.encode(gradient.WorkerJoin(name="a flood")))
        self._socket.recv(1)  # it has joined
        self._thread = threading.Thread(target=self._flood, args=(pieces,), name="phalanx-flood", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flood(self, pieces: Iterable[bytes]) -> None:
        with suppress(OSError):  # closed, here or there
            for piece in pieces:
                self._socket.sendall(piece)


def _empty_gradient(step: int) -> bytes:
    return gradient.encode(gradient.Gradient(step, gradient.Whole(), 0, (0,), samples=1))


def _steps_to_come() -> Iterable[bytes]:
    for first in count(0, _BATCH):
        yield b"".join(map(_empty_gradient, range(first, first + _BATCH)))
