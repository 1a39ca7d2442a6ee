"""The thread of the gradient server: it serves all connections and carries out one call at a time."""

import contextlib
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import BadFrame, DeadlineExceeded, LinkClosed, PeerLost, PhalanxError, ProtocolError
from phalanx.gradient_server.entrenar import EntrenarWire
from phalanx.gradient_server.halt import to_message
from phalanx.gradient_server.peer import OurWire, Peer
from phalanx.gradient_server.worker import NOBODY, RemoteWorker, Result, Task
from phalanx.transport import Acceptor, Deadline, Pending, ProvenConnection, StreamLink
from phalanx.wire import gradient

_JOIN_S = 10.0  # a connection that has not joined by then is a stranger
_FAREWELL_S = 2.0
_SIGN_S = 0.5  # how often workers get a sign of life
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_log = logging.getLogger("phalanx")


@dataclass(slots=True)
class _Call:
    """A call that somebody waits for. ``late`` are the workers that it waited for when it was last resumed."""

    task: Task[object]
    step: int
    doing: str
    deadline: Deadline
    pending: Pending[object]
    late: Sequence[RemoteWorker] = ()


class Star:
    """The workers of a gradient server: accepts ``size`` of them, and halts all of them when one fails.

    ``error`` is why it has halted, or None. It runs in a thread of its own until it is closed.
    """

    def __init__(self, acceptor: Acceptor, size: int) -> None:
        self.error: Exception | None = None
        self.members: dict[int, RemoteWorker] = {}
        self.is_complete = threading.Event()
        self._acceptor = acceptor
        self._size = size
        self._connections: list[RemoteWorker] = []
        self._call: _Call | None = None
        self._step = 0
        self._next_sign = 0.0
        self._lost: PhalanxError | None = None
        self._calls: deque[_Call] = deque()
        self._calling = threading.Lock()
        self._is_ended = False
        self._is_closing = False
        self._is_over = False
        self._awake, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="phalanx-gradients", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> list[RemoteWorker]:
        """The workers that have joined, by number."""
        return [self.members[number] for number in sorted(self.members)]

    def carry_out(self, task: Task[Result], step: int, doing: str, deadline: Deadline) -> Result:
        """Run ``task`` and return its result. If the task fails, all workers are halted."""
        call = _Call(task, step, doing, deadline, Pending(doing))
        with self._calling:
            if self._is_over:
                raise self._closed()
            self._calls.append(call)
        self._rouse()
        return call.pending.wait()  # type: ignore[return-value]  # it is what the task returns

    def end(self) -> Task[None]:
        """Tell all workers that there is no more work, and expect them to disconnect."""
        self._is_ended = True
        for worker in self.workers:
            worker.peer.say(gradient.ServerEnd())
        while busy := [worker for worker in self.workers if not worker.peer.is_quiet]:
            yield busy
        self.error = self._closed()

    def close(self) -> None:
        """Close all connections and stop the thread. Closing twice is harmless."""
        self._is_closing = True
        self._rouse()
        self._thread.join()
        self._wake.close()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                has_elements = [self._attend(worker) for worker in list(self._connections)]
                self._advance()
                self._show_life()
                # While elements arrive, answers wait: alternating would wake every worker for a few bytes.
                if not any(has_elements) and not self._speak_to_all():
                    self._wait()
            self._say_farewell()
        except Exception as error:
            self.error = error
            raise
        finally:
            self._shut_down()

    def _attend(self, worker: RemoteWorker) -> bool:
        """Handle some of what has arrived from a worker, and return whether there were elements that a call needs."""
        before = len(worker.peer.room)
        try:
            if worker.has_joined and (self.error or self._is_ended):
                worker.peer.discard()  # so that it can finish sending, and then read why everybody halts
                return False
            for event in () if worker.is_held else worker.peer.hear():
                self._take(worker, event)
                if worker not in self._connections:
                    break
        except PeerLost:
            self._lose(worker, PeerLost(f"{worker} went away{self._during()}", peer=worker.number))
        except ProtocolError as error:
            self._lose(worker, type(error)(f"{worker} cannot be understood: {error}", peer=worker.number))
        return len(worker.peer.room) < before

    def _show_life(self) -> None:
        """Let every worker know now and then that this process is not stopped, unless it has more to read already."""
        if self.error or self._is_ended or not _is_past(self._next_sign):
            return
        self._next_sign = time.monotonic() + _SIGN_S
        for worker in self.workers:
            if worker.peer.is_quiet:
                worker.peer.say(gradient.ServerAlive())
                self._speak(worker)

    def _speak_to_all(self) -> bool:
        """Send to all workers, and return whether one of them is quiet now: the call may be waiting for that."""
        busy = [worker for worker in self._connections if not worker.peer.is_quiet]
        for worker in busy:
            self._speak(worker)
        return any(worker.peer.is_quiet for worker in busy)

    def _speak(self, worker: RemoteWorker) -> None:
        with contextlib.suppress(PeerLost):  # reading notices it too, after what arrived before
            worker.peer.speak()

    def _take(self, worker: RemoteWorker, event: gradient.Event) -> None:
        match event:
            case gradient.GradientBegan(message=gradient.Gradient() as sent) if worker.has_joined:
                worker.stated.append(sent)
            case gradient.MessageEnded(message=gradient.Gradient() as sent) if worker.has_joined:
                worker.complete.append(sent)
            case gradient.MessageEnded(message=gradient.WorkerJoin(name=name)) if not worker.has_joined:
                self._join(worker, name)
            case _:
                raise BadFrame(f"a worker must not send {type(event.message).__name__} now")

    def _join(self, worker: RemoteWorker, name: str) -> None:
        worker.name = name
        is_foreign = isinstance(worker.peer.wire, EntrenarWire)  # entrenar tells its workers apart by their numbers
        if self.is_complete.is_set():
            self._refuse(worker, f"all {self._size} workers have joined already")
        elif name and not is_foreign and name in (member.name for member in self.members.values()):
            self._refuse(worker, f"there is a worker with the name {name} already")
        else:
            worker.number = min(set(range(self._size)) - self.members.keys())
            worker.peer.wire.trust()
            worker.peer.say(gradient.WorkerJoined(worker=worker.number, workers=self._size))
            self.members[worker.number] = worker
            if len(self.members) == self._size:
                self.is_complete.set()

    def _refuse(self, worker: RemoteWorker, words: str) -> None:
        worker.peer.say(gradient.WorkerRefused(words=words))
        self._speak(worker)
        self._drop(worker, words)

    def _lose(self, worker: RemoteWorker, error: PhalanxError) -> None:
        self._drop(worker, str(error))
        if not self.members.pop(worker.number, None) or self._is_ended or not self.is_complete.is_set():
            return  # before all have joined, another worker may take its place
        if self._call and not worker.stated:
            self._lost = error  # the call may not need it: then the others still get their result
        else:
            self._halt(error)

    def _drop(self, worker: RemoteWorker, words: str) -> None:
        self._connections.remove(worker)
        worker.peer.close()
        if not self.is_complete.is_set() or not worker.has_joined:
            _log.warning("refused a connection from %s: %s", worker.origin, words)

    def _advance(self) -> None:
        if self._call is None and self._calls:
            self._call = self._calls.popleft()
            self._step = self._call.step
        call = self._call
        if call is None:
            return
        if self.error:
            self._halt(self.error)
            return
        try:
            call.late = next(call.task)
        except StopIteration as end:
            result, self._call = end.value, None
            if self._lost:
                self._halt(self._lost)
            call.pending.complete(lambda: result)
        except Exception as error:  # noqa: BLE001 - the caller gets it, whatever it is
            self._halt(error)
        else:
            if self._lost and not set(call.late) <= set(self._connections):
                self._halt(self._lost)
            elif call.deadline.has_passed:
                self._halt(self._overdue(call))

    def _halt(self, error: Exception) -> None:
        """Tell all workers once, and fail the current call."""
        call, self._call = self._call, None
        if not self.error:
            self.error = error
            for worker in self.workers:
                worker.peer.break_off()
                worker.peer.say(to_message(error, self._step))
                self._speak(worker)
        if call:
            call.pending.fail(error)

    def _overdue(self, call: _Call) -> DeadlineExceeded:
        names = " and ".join(map(str, call.late)) or "the gradient server itself"
        words = (
            f"{names} did not finish {call.doing} within {call.deadline.seconds:g} s: look there, or allow more time"
        )
        return DeadlineExceeded(words, peer=call.late[0].number if call.late else None)

    def _during(self) -> str:
        during = f" during {self._call.doing}" if self._call else ""
        return f"{during}: look at its log, then start all workers again"

    def _closed(self) -> LinkClosed:
        return LinkClosed("this gradient server was shut down: start another one")

    def _wait(self) -> None:
        """Wait until there is something to do, and accept new connections."""
        poll = select.poll()
        poll.register(self._awake, select.POLLIN)
        poll.register(self._acceptor, select.POLLIN)
        for worker in self._connections:
            is_listening = self.error or self._is_ended or not worker.is_held
            events = (select.POLLIN if is_listening else 0) | (0 if worker.peer.is_quiet else select.POLLOUT)
            poll.register(worker.peer, events | _HUNG_UP)
        ready = dict(poll.poll(self._patience_ms()))
        if self._awake.fileno() in ready:
            self._awake.recv(1024)
        if self._acceptor.fileno() in ready or _is_past(self._acceptor.next_due):
            for arrival in self._acceptor.arrivals():
                self._admit(arrival)
        for worker in list(self._connections):
            if worker.is_held and ready.get(worker.peer.fileno(), 0) & _HUNG_UP:
                self._lose(worker, PeerLost(f"{worker} went away{self._during()}", peer=worker.number))
            elif not worker.has_joined and _is_past(worker.due):
                self._drop(worker, f"it did not join within {_JOIN_S:g} s")

    def _patience_ms(self) -> float | None:
        if any(worker.peer.has_more and not worker.is_held for worker in self._connections):
            return 0.0
        if self._call and not self._call.late:
            return 0.0  # it is at work
        dues = [worker.due for worker in self._connections if not worker.has_joined]
        if self._acceptor.next_due is not None:
            dues.append(self._acceptor.next_due)
        if self._call:
            dues.append(self._call.deadline.at)
        if self.members and not (self.error or self._is_ended):
            dues.append(self._next_sign)
        return max(0.0, min(dues) - time.monotonic()) * 1000 if dues else None

    def _admit(self, arrival: ProvenConnection) -> None:
        wire = EntrenarWire() if arrival.opening else OurWire()
        peer = Peer(StreamLink(arrival.socket, NOBODY), wire, arrival.opening)
        self._connections.append(RemoteWorker(peer, arrival.origin, time.monotonic() + _JOIN_S))

    def _say_farewell(self) -> None:
        """Give the last messages a little time to be sent."""
        deadline = Deadline.after(_FAREWELL_S)
        while busy := [worker.peer for worker in self._connections if not worker.peer.is_quiet]:
            if not select.select([], busy, [], deadline.remaining_s())[1]:
                return
            for worker in list(self._connections):
                self._attend(worker)
                if worker in self._connections:  # it may have gone away meanwhile
                    self._speak(worker)

    def _shut_down(self) -> None:
        with self._calling:
            self._is_over = True
        self.is_complete.set()  # ends wait_for_workers
        self.error = self.error or self._closed()
        for call in (*filter(None, [self._call]), *self._calls):
            call.pending.fail(self.error)
        for worker in self._connections:
            worker.peer.close()
        self._acceptor.close()
        self._awake.close()


def _is_past(due: float | None) -> bool:
    return due is not None and time.monotonic() >= due
