"""Leaving notes at a coordinator for other clients, without being a worker."""

import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from phalanx.coordinator.connection import Connection
from phalanx.errors import ConnectError, DeadlineExceeded, JoinRefused, PhalanxError
from phalanx.transport import Credentials, Deadline, call, format_address
from phalanx.wire import Address, PostedNote, PostNote, Purpose, Refused, encode

_LIMIT_BYTES = 1 << 20
_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class ClockSample:
    """How far the coordinator's clock is ahead of ours, which is exact to half of the round trip."""

    offset_s: float
    round_trip_s: float


class NotesClient:
    """A client of the noticeboard at ``address``. ``notes`` are those of all authors, also of those that are ``gone``.

    ``local_host`` is the address by which this machine reaches the coordinator. ``clock`` is this machine's.
    """

    def __init__(
        self,
        address: Address,
        deadline: Deadline,
        credentials: Credentials,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._whom = f"the coordinator at {format_address(address)}"
        connected = call([address], deadline, credentials, Purpose.COORDINATOR, whom="the coordinator")
        self.local_host: str = connected.getsockname()[0]
        self._connection = Connection(connected, self._whom, _LIMIT_BYTES, deadline.seconds)
        self._clock = clock
        self._echoes: list[tuple[float, float]] = []  # the coordinator's time, and ours when we read it
        self.author: int | None = None
        """The number under which the others see our notes; known when the clock was compared."""
        self.notes: dict[int, list[bytes]] = {}
        self.gone: set[int] = set()

    def compare_clocks(self, deadline: Deadline) -> ClockSample:
        """Return the sample with the shortest round trip of several."""
        samples = []
        for _ in range(_SAMPLES):
            asked, count = self._clock(), len(self._echoes)
            self._connection.send_nowait(encode(PostNote(b"")))
            self.wait_until(lambda count=count: len(self._echoes) > count, deadline)  # type: ignore[misc]
            told, heard = self._echoes[-1]
            samples.append(ClockSample(told - (asked + heard) / 2, heard - asked))
        return min(samples, key=lambda each: each.round_trip_s)

    def post(self, note: bytes) -> None:
        """Leave a note for all clients, this one included."""
        self._connection.send_nowait(encode(PostNote(note)))

    def wait_until(self, is_enough: Callable[[], bool], deadline: Deadline) -> None:
        """Read notes until there are enough. Raises DeadlineExceeded, or ConnectError if the coordinator is gone."""
        poll = select.poll()
        while not is_enough():
            poll.register(
                self._connection.socket, select.POLLIN | (select.POLLOUT if self._connection.is_behind else 0)
            )
            if not self._connection.has_more and not poll.poll(deadline.remaining_s() * 1000):
                raise DeadlineExceeded(f"{self._whom} had no news within {deadline.seconds:g} s")
            try:
                self._connection.send_nowait()
                messages = self._connection.read_nowait()
            except (OSError, PhalanxError) as error:
                raise ConnectError(f"{self._whom} went away: {error}") from error
            for message in messages:
                self._hear(message)

    def _hear(self, message: object) -> None:
        match message:
            case PostedNote(author=author, note=b"", time_s=time_s):
                self.author = author
                self._echoes.append((time_s, self._clock()))
            case PostedNote(author=author, note=None):
                self.gone.add(author)
            case PostedNote(author=author, note=bytes() as note):
                self.notes.setdefault(author, []).append(note)
            case Refused(reason=reason):
                raise JoinRefused(f"{self._whom} refused us: {reason}")
            case _:
                pass

    def close(self) -> None:
        """Hang up, which removes our notes. Closing twice is harmless."""
        with suppress(OSError):
            self._connection.send_nowait()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
