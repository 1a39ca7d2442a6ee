"""A worker's connection to the coordinator."""

import contextlib
import socket
import threading
from collections.abc import Sequence

from phalanx.errors import (
    CollectiveMismatch,
    ConnectError,
    DeadlineExceeded,
    JoinRefused,
    PeerLost,
    PhalanxError,
)
from phalanx.transport import Deadline, Epoch, Wait, connect
from phalanx.wire import (
    Address,
    Ask,
    Cause,
    Failed,
    FrameReader,
    Hello,
    Leave,
    Left,
    Message,
    Refused,
    Revoked,
    Waiting,
    Welcome,
    Wonder,
    decode,
    encode,
)

_LIMIT_BYTES = 1 << 24  # the coordinator is trusted: its welcome names every member
_WORDS = 4000

_ERRORS = {
    Cause.LOST: PeerLost,
    Cause.LEFT: PeerLost,
    Cause.RAISED: PeerLost,
    Cause.STALLED: DeadlineExceeded,
    Cause.DISAGREED: CollectiveMismatch,
}


class CoordinatorClient:
    """Joins a group, then tells ``epoch`` when the coordinator revokes it.

    One small thread reads; it ends when the connection does.
    """

    def __init__(self, addresses: Sequence[Address], deadline: Deadline, *, hosted_by: int | None = None) -> None:
        self._socket = connect(addresses, deadline, whom="the coordinator")
        self._hosted_by = hosted_by
        self._reader = FrameReader(_LIMIT_BYTES)
        self._inbox: list[Message] = []
        self._sending = threading.Lock()
        self._is_leaving = False
        self._thread: threading.Thread | None = None

    @property
    def local_host(self) -> str:
        """This end of the connection: an address of this machine that works."""
        return str(self._socket.getsockname()[0])

    def join(self, hello: Hello, deadline: Deadline) -> tuple[Welcome, Epoch]:
        """Become a member: wait until all workers have come."""
        self._send(hello)
        try:
            message = self._receive(deadline)
        except TimeoutError:
            raise ConnectError(
                f"the group was not complete within {deadline.seconds:g} s: were all workers started?"
            ) from None
        except OSError as error:
            raise ConnectError(f"the coordinator hung up before the group was complete: {error}") from error
        if isinstance(message, Refused):
            raise JoinRefused(f"the coordinator refused this worker: {message.reason}")
        if not isinstance(message, Welcome):
            raise ConnectError(f"the coordinator answered with {type(message).__name__} instead of a welcome")
        epoch = Epoch(message.epoch)
        epoch.wonder = lambda: self._send(Wonder())
        self._thread = threading.Thread(target=self._listen, args=(epoch,), name="phalanx-epoch", daemon=True)
        self._thread.start()
        return message, epoch

    def report(self, cause: Cause, rank: int, words: str) -> None:
        """Tell the coordinator, and so everybody, why this rank cannot go on."""
        self._send(Failed(cause=cause, rank=rank, words=words[:_WORDS]))

    def leave(self) -> None:
        """Go, without anybody else having to stop. Leaving twice is harmless."""
        if not self._is_leaving:
            self._is_leaving = True
            self._send(Leave())
            self.close()

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        self._is_leaving = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread:
            self._thread.join()
        self._socket.close()

    def _listen(self, epoch: Epoch) -> None:
        try:
            while not self._is_leaving:
                self._hear(self._receive(None), epoch)
        except (OSError, PhalanxError) as error:
            if not self._is_leaving:
                where = "" if self._hosted_by is None else f", which rank {self._hosted_by} runs,"
                words = f"the coordinator{where} went away: {error}"
                epoch.revoke(PeerLost(words, peer=self._hosted_by))

    def _hear(self, message: Message, epoch: Epoch) -> None:
        match message:
            case Revoked(cause=cause, rank=rank, words=words):
                epoch.revoke(_ERRORS[cause](words, peer=rank))
            case Left(rank=rank):
                epoch.leave(rank)
            case Ask():
                wait = epoch.waiting or Wait((), "")
                words = str(wait.words)[:_WORDS]
                self._send(Waiting(ranks=wait.ranks, group=wait.group, sequence=wait.sequence, words=words))
            case _:
                pass  # nothing else concerns a member

    def _receive(self, deadline: Deadline | None) -> Message:
        while (frame := self._reader.next_frame()) is None:
            self._socket.settimeout(None if deadline is None else max(0.001, deadline.remaining_s()))
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("it hung up")
            self._reader.feed(data)
        return decode(frame[1])

    def _send(self, message: Message) -> None:
        with self._sending, contextlib.suppress(OSError):  # a broken connection is noticed by the thread that reads
            self._socket.sendall(encode(message))
