"""The coordinator at work: one thread that carries messages between workers and ``Membership``."""

import contextlib
import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import Self

from phalanx.coordinator.membership import Decision, Drop, Membership, Say
from phalanx.errors import PhalanxError
from phalanx.transport import Deadline, Listener
from phalanx.wire import Address, FrameReader, Hello, decode, encode

_HELLO_S = 10.0  # a connection that has not said hello by then is a stranger
_MEMBER_LIMIT_BYTES = 1 << 20
_log = logging.getLogger("phalanx")


class Coordinator:
    """Forms one group of ``size`` workers and tells all of them when one is lost.

    It listens from construction on and works in a thread of its own until it is closed.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, size: int | None = None, job: str = "") -> None:
        self._listener = Listener(host, port)
        self.address: Address = self._listener.address
        self._membership = Membership(size, job, os.urandom(16))
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._nobody_here = threading.Event()
        self._stop_read, self._stop_write = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="phalanx-coordinator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody and stop. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self._stop_write.send(b"!")
        self._thread.join()
        self._stop_write.close()

    def close_when_left(self, deadline: Deadline) -> None:
        """Close when all workers have hung up, or at the deadline."""
        self._nobody_here.wait(deadline.remaining_s())
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select(self._patience_s()):
                if key.fileobj is self._stop_read:
                    self._shut_down()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Connection) and key.data.number in self._connections:
                    self._attend(key.data, events)
            if self._connections:
                self._nobody_here.clear()
            else:
                self._nobody_here.set()
            now = time.monotonic()
            self._carry_out(self._membership.tick(now))
            for connection in list(self._connections.values()):
                if not connection.is_known and now > connection.hello_due:
                    self._drop(connection, "it did not say hello")

    def _patience_s(self) -> float | None:
        dues = [each.hello_due for each in self._connections.values() if not each.is_known]
        if (tick := self._membership.next_tick) is not None:
            dues.append(tick)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _accept(self) -> None:
        if accepted := self._listener.accept_nowait():
            connection = _Connection(next(self._numbers), *accepted)
            self._connections[connection.number] = connection
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _attend(self, connection: "_Connection", events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                for payload in connection.read_nowait():
                    message = decode(payload)
                    if isinstance(message, Hello):
                        connection.become_known()
                    self._carry_out(self._membership.hear(connection.number, message, time.monotonic()))
        except (OSError, PhalanxError) as error:
            self._drop(connection, str(error))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            connection = self._connections.get(decision.connection)
            if connection is None:
                continue
            if isinstance(decision, Say):
                connection.outbox += encode(decision.message)
                with contextlib.suppress(OSError):  # its own reading will notice
                    self._flush(connection)
            elif isinstance(decision, Drop):
                self._drop(connection, "it was refused")

    def _flush(self, connection: "_Connection") -> None:
        connection.write_nowait()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: "_Connection", reason: str) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        if not connection.is_known:
            _log.warning("coordinator: sent %s away: %s", connection.origin, reason)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._carry_out(self._membership.hang_up(connection.number))

    def _shut_down(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._selector.close()
        self._listener.close()
        self._stop_read.close()


class _Connection:
    """One worker's connection: what is still to be read and written."""

    def __init__(self, number: int, connected: socket.socket, origin: str) -> None:
        self.number = number
        self.socket = connected
        self.origin = origin
        self.outbox = bytearray()
        self.is_known = False
        self.hello_due = time.monotonic() + _HELLO_S
        self._reader = FrameReader()

    def become_known(self) -> None:
        """Allow longer messages, now that this is no stranger."""
        self.is_known = True
        self._reader.raise_limit(_MEMBER_LIMIT_BYTES)

    def read_nowait(self) -> list[bytes]:
        """The messages that are complete; raises ``OSError`` when the worker hung up."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("it hung up")
        self._reader.feed(data)
        return [frame[1] for frame in iter(self._reader.next_frame, None)]

    def write_nowait(self) -> None:
        """Send what there is room for."""
        with contextlib.suppress(BlockingIOError):
            del self.outbox[: self.socket.send(self.outbox)]
