"""Members that misbehave: each joins a run as a worker does, and then says what no worker should say."""

import os
from collections.abc import Callable, Iterable

from phalanx.testing.hostile.frames import hostile_frames
from phalanx.transport import Credentials, Deadline, call
from phalanx.wire import (
    Address,
    Ask,
    Cause,
    Commit,
    Done,
    Evict,
    Failed,
    FrameReader,
    Halt,
    Hello,
    Left,
    Look,
    Message,
    Purpose,
    Reason,
    Refused,
    Waiting,
    Welcome,
    decode,
    encode,
)

Sends = Callable[[Welcome], Iterable[bytes]]
"""What a member sends when an epoch has begun."""

_LIMIT_BYTES = 1 << 24
_FLOOD = 20_000
_NASTY = "\x1b[2J\x1b]0;owned\x07\n\x00\n12:00:00 epoch 1 ends: rank 0 went away"


def hostile_members() -> dict[str, Sends]:
    """Return, by what is wrong with them, members of a run for ``HostileMember``.

    None of them may change what the others compute. One that says nothing is given up after the stall time.
    """
    found: dict[str, Sends] = {"silence": lambda _: (), "half a frame": lambda _: (encode(Ask())[:70],)}
    found |= {what: _saying(message) for what, message in _NONSENSE.items()}
    found |= {f"a frame: {what}": _sending(data) for what, data in hostile_frames().items()}
    found["a flood, and a hang-up in the middle of a frame"] = lambda welcome: (
        encode(_waiting(welcome.epoch, 0)) * _FLOOD,
        b"PHLX",
        b"",
    )
    return found


class HostileMember:
    """A worker of a run that joins, sends what it should not, and listens until the coordinator hangs up.

    An empty piece in what it sends stands for its own hang-up.
    """

    def __init__(
        self,
        address: Address,
        sends: Sends,
        deadline: Deadline,
        *,
        lanes: int,
        credentials: Credentials = Credentials(),  # noqa: B008 - it is frozen
    ) -> None:
        self._sends = sends
        self._deadline = deadline
        self._reader = FrameReader(_LIMIT_BYTES)
        self._socket = call([address], deadline, credentials, Purpose.COORDINATOR, whom="the coordinator")
        name = f"hostile{_NASTY}:{os.getpid()}:{os.urandom(8).hex()}"
        hello = Hello("here", (), os.getpid(), None, None, "", name=name, lanes=lanes)
        self._socket.sendall(encode(hello))

    def misbehave(self) -> str:
        """Wait for an epoch, send everything, and return the coordinator's last words, if it had any."""
        with self._socket:
            welcome = self._hear_until(Welcome)
            assert isinstance(welcome, Welcome), "the coordinator hung up before anything was said"
            try:
                for data in self._sends(welcome):
                    if not data:
                        return ""
                    self._socket.sendall(data)
            except ConnectionError:
                pass  # sent away in the middle of it
            last = self._hear_until(Refused, Evict)
            return last.reason if isinstance(last, Refused) else last.words if isinstance(last, Evict) else ""

    def _hear_until(self, *kinds: type[Message]) -> Message | None:
        """Return the first message of one of these kinds, or None if the coordinator hangs up before."""
        while True:
            for _, payload in iter(self._reader.next_frame, None):
                message = decode(payload)
                if isinstance(message, kinds):
                    return message
            self._socket.settimeout(max(0.001, self._deadline.remaining_s()))
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._reader.feed(data)


def _waiting(epoch: int, rank: int, waited_s: tuple[float, ...] = (0.0,)) -> Waiting:
    return Waiting(epoch, (rank,), waited_s, "", 0, f"a barrier{_NASTY}", 0.0)


_NONSENSE: dict[str, Callable[[Welcome], Message]] = {
    "done with the last step that there is": lambda w: Done(w.epoch, 2**64 - 1, 0.0, b""),
    "done with a step to come": lambda w: Done(w.epoch, w.step + 1, 0.0, b""),
    "waiting for a rank that does not exist": lambda w: _waiting(w.epoch, 65534),
    "waiting for ranks without times": lambda w: _waiting(w.epoch, 0, ()),
    "blaming a rank that does not exist": lambda w: Failed(w.epoch, Cause.STALLED, 65534, _NASTY),
    "blaming itself": lambda w: Failed(w.epoch, Cause.STALLED, w.rank, _NASTY),
    "the failure of another rank": lambda w: Failed(w.epoch, Cause.RAISED, (w.rank + 1) % 65534, _NASTY),
    "halting at the last step that there is": lambda w: Halt(2**64 - 1, Reason.RAISED, w.rank, _NASTY),
    "halting because of a rank that does not exist": lambda w: Halt(w.step, Reason.RAISED, 65534, _NASTY),
    "halting for the coordinator's reasons": lambda w: Halt(w.step, Reason.STUCK, None, _NASTY),
    "its own failure": lambda w: Failed(w.epoch, Cause.RAISED, w.rank, _NASTY),
    "a second hello": lambda _: Hello("here", (), 1, None, None, "", name="again", lanes=1),
    "a commit": lambda w: Commit(w.step, b""),
    "a welcome": lambda w: w,
    "a look": lambda _: Look(),
    "a question": lambda _: Ask(),
    "the leaving of another rank": lambda w: Left(w.rank + 1),
}


def _saying(make: Callable[[Welcome], Message]) -> Sends:
    return lambda welcome: (encode(make(welcome)),)


def _sending(data: bytes) -> Sends:
    return lambda _: (data,)
