"""The coordinator's server: one thread that carries messages between workers and ``Membership``."""

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

from msgspec.structs import replace

from phalanx.coordinator.chronicle import Chronicle
from phalanx.coordinator.connection import Connection
from phalanx.coordinator.decision import Decision, Drop, Record, Say
from phalanx.coordinator.event_log import EventLog
from phalanx.coordinator.journal import Journal
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.record import Past
from phalanx.coordinator.terms import Terms
from phalanx.errors import BadFrame
from phalanx.telemetry import RecordCollector
from phalanx.transport import Acceptor, Credentials, Deadline, close_in_children
from phalanx.wire import (
    Address,
    AskTime,
    Commit,
    Done,
    Halt,
    Heard,
    Message,
    PostedNote,
    Purpose,
    Records,
    Revoked,
    TellTime,
    Welcome,
    encode,
)

_LIMIT_BYTES = 1 << 20
_LOOK_S = 1.0  # the longest wait; a much longer one shows that this process was stopped
_STOPPED_S = 2.0
_HELLO_S = 10.0  # a connection that has not said by then what it wants is closed
_log = logging.getLogger("phalanx")


class Coordinator:
    """Decides who is in the group and whether a step counts, and tells all workers.

    It listens from construction on and works in a thread of its own until it is closed. It continues the run that
    ``journal`` describes, writes what happens to the run to ``events``, and gives the telemetry of workers that cannot
    write it themselves to ``records``; the caller closes all of these.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        terms: Terms | None = None,
        credentials: Credentials | None = None,
        journal: Journal | None = None,
        events: EventLog | None = None,
        records: RecordCollector | None = None,
    ) -> None:
        self._acceptor = Acceptor(host, port, credentials or Credentials(), Purpose.COORDINATOR)
        self.address: Address = self._acceptor.address
        self._journal = journal
        self._terms = terms or Terms()
        self._clock = _WorkingClock()
        past = journal.past if journal else Past()
        self._membership = Membership(self._terms, os.urandom(32), past, self._clock.now())
        self._events = events
        self._records = records
        self._chronicle = Chronicle(past, self._clock.now())
        self._connections: dict[int, Connection] = {}
        self._unheard: set[int] = set()  # connections of which messages were left for the next round
        self._silent: dict[int, float] = {}  # connections that have said nothing yet, and until when they have time
        self._numbers = itertools.count()
        self._selector = close_in_children(selectors.DefaultSelector())
        self._deserted = threading.Event()
        self._over = threading.Event()
        self._over_due: float | None = None
        self._failure: str | None = None
        self._stop_read, self._stop_write = map(close_in_children, socket.socketpair())
        self._selector.register(self._acceptor, selectors.EVENT_READ)
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        if self._events:
            self._events.write(self._chronicle.start())
        self._thread = threading.Thread(target=self._serve, name="phalanx-coordinator", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> str | None:
        """Why the run is over; None if it is not."""
        return self._failure or self._membership.ended

    @property
    def has_halted(self) -> bool:
        """Whether the run ended before it was finished."""
        return self._membership.has_halted or self._failure is not None

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``, and return whether the run is over and all workers know."""
        return self._over.wait(timeout_s)

    def close(self) -> None:
        """Close all connections and stop. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self._stop_write.send(b"!")
        self._thread.join()
        self._stop_write.close()

    def close_when_left(self, deadline: Deadline) -> None:
        """Close when all members of the group have left, or at the deadline."""
        self._deserted.wait(deadline.remaining_s())
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            while self._attend_to_all():
                pass
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not leave all workers waiting
            self._failure = f"the coordinator failed: {error!r}"
            _log.exception("the coordinator failed")
        finally:
            self._note_end()
            for connection in self._connections.values():
                connection.close()
            self._selector.close()
            self._acceptor.close()
            self._stop_read.close()
            self._deserted.set()
            self._over.set()

    def _attend_to_all(self) -> bool:
        """Wait until something is to be done, and do it. Return False when the server must stop.

        In each round every connection gets its turn, and a connection that says much gets no more than the others.
        """
        ready = self._selector.select(self._longest_wait_s())
        if any(key.fileobj is self._stop_read for key, _ in ready):
            return False
        spoke = [key.data for key, _ in ready if isinstance(key.data, int)]  # in the order in which they did
        for number in dict.fromkeys([*spoke, *self._unheard]):
            if number in self._connections:
                self._attend(number)
        for arrival in self._acceptor.arrivals():
            number = next(self._numbers)
            connection = Connection(arrival.socket, arrival.origin, _LIMIT_BYTES, self._terms.patience_s)
            self._connections[number] = connection
            self._silent[number] = self._clock.now() + _HELLO_S
            self._selector.register(arrival.socket, selectors.EVENT_READ, number)
            self._attend(number)  # TLS may hold its first words already
        for number, due in list(self._silent.items()):
            if self._clock.now() >= due:
                self._drop(number, f"it did not say within {_HELLO_S:g} s what it wants")
        self._carry_out(self._membership.tick(self._clock.now()))
        self._note_who_is_here()
        return True

    def _longest_wait_s(self) -> float:
        if self._unheard:
            return 0.0
        last = None if self._over.is_set() else self._over_due
        own = [due - self._clock.now() for due in (self._membership.next_tick, last) if due is not None]
        arriving = [] if self._acceptor.next_due is None else [self._acceptor.next_due - time.monotonic()]
        return max(0.0, min([_LOOK_S, *own, *arriving]))

    def _note_who_is_here(self) -> None:
        if self._membership.is_deserted:
            self._deserted.set()
        else:
            self._deserted.clear()
        if self._membership.is_over and self._over_due is None:
            self._over_due = self._clock.now() + self._terms.patience_s  # a worker that missed the end may call
        elif self._over_due is not None and self._clock.now() >= self._over_due:
            self._over.set()

    def _attend(self, number: int) -> None:
        connection = self._connections[number]
        self._unheard.discard(number)
        try:
            for message in connection.read_nowait():
                if number not in self._connections:
                    return  # an earlier message made us close the connection
                if isinstance(message, AskTime):  # at once: what the answer waits for makes the time uncertain
                    self._send(number, encode(TellTime(message.asked_ns, time.monotonic_ns())))
                    continue
                if isinstance(message, Records) and connection.is_known:
                    self._keep_records(message)
                    continue
                connection.introduce(message)
                self._silent.pop(number, None)
                if self._events and not isinstance(message, Done):  # which nobody wants to read about
                    self._events.write(self._chronicle.hear(number, message))
                self._carry_out(self._membership.hear(number, message, self._clock.now()))
        except OSError as error:
            self._drop(number, str(error))
        except BadFrame as error:
            self._carry_out(self._membership.hear_garbage(number, str(error), self._clock.now()))
        else:
            self._send(number)
            if connection.has_more and number in self._connections:
                self._unheard.add(number)

    def _keep_records(self, message: Records) -> None:
        if self._records and not self._records.take(message.batch):
            raise BadFrame("it sent telemetry that is damaged, or of another release")

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Say(to=numbers, message=message):
                    self._tell(numbers, message)
                case Drop(connection=number, why=why):
                    self._drop(number, why)
                case Record(line=line):
                    try:
                        if self._journal:
                            self._journal.append(line)
                    except OSError as error:
                        self._carry_out(self._membership.fail_to_record(line, error.strerror or str(error)))
                        return  # the messages that follow say that the line was recorded
        self._note_end()

    def _tell(self, numbers: tuple[int, ...], message: Message) -> None:
        if isinstance(message, PostedNote):
            message = replace(message, time_s=time.time())
        if isinstance(message, Welcome):
            self._deserted.clear()  # before a member knows: it may leave at once, and somebody wait for that
        _note(message)
        frame = encode(message)
        for number in numbers:
            self._send(number, frame)
            if isinstance(message, Heard) and number in self._connections:
                self._connections[number].keep_alive(message.patience_s)
        if self._events and (self._chronicle.awaits_commit or not isinstance(message, Commit)):
            self._events.write(self._chronicle.tell(numbers, message, self._clock.now()))

    def _note_end(self) -> None:
        if self._events and self.ended is not None:
            self._events.write(self._chronicle.end(self._membership.step, self.ended, has_halted=self.has_halted))

    def _send(self, number: int, frame: bytes = b"") -> None:
        connection = self._connections.get(number)
        if connection and frame and connection.is_choked:
            self._drop(number, "it does not read what it is told")
        elif connection:
            was_behind = connection.is_behind
            connection.send_nowait(frame)
            if connection.is_behind != was_behind:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_behind else 0)
                self._selector.modify(connection.socket, wanted, number)

    def _drop(self, number: int, why: str) -> None:
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        self._unheard.discard(number)
        self._silent.pop(number, None)
        if connection.is_known:
            _log.log(logging.DEBUG if connection.has_looked else logging.INFO, "%s is gone: %s", connection.origin, why)
        else:
            _log.warning("refused a connection from %s: %s", connection.origin, why)
        self._selector.unregister(connection.socket)
        connection.close()
        if self._events:
            self._events.write(self._chronicle.hang_up(number, why))
        self._carry_out(self._membership.hang_up(number, self._clock.now()))


class _WorkingClock:
    """The monotonic clock without the time in which this process was stopped, by Ctrl-Z for example.

    While the coordinator is stopped it reads no messages, so this time must not count against a worker.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._stopped_s = 0.0

    def now(self) -> float:
        """Return the time; called at least every ``_LOOK_S``, so a longer gap is time in which nothing worked."""
        now = time.monotonic()
        if now - self._last > _STOPPED_S:
            self._stopped_s += now - self._last
        self._last = now
        return now - self._stopped_s


def _note(message: Message) -> None:
    """Log the messages that tell people what happens to the run."""
    match message:
        case Welcome(epoch=epoch, rank=0, members=members, step=step):
            _log.info("epoch %d begins at step %d with %d workers", epoch, step, len(members))
        case Revoked(epoch=epoch, words=words):
            _log.info("epoch %d ends: %s", epoch, words)
        case Halt(step=step, words=words):
            _log.info("all workers halt at step %d: %s", step, words)
        case _:
            pass
