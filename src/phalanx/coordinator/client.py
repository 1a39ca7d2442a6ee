"""A worker's connection to the coordinator: one small thread that carries messages to and from ``Participant``."""

import contextlib
import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from phalanx.coordinator.connection import Connection
from phalanx.coordinator.participant import (
    NO_EPOCH,
    REPORT_S,
    Abandon,
    Apply,
    Begin,
    HangUp,
    Move,
    Participant,
    Reconnect,
    ReportWait,
    Stop,
    Tell,
)
from phalanx.coordinator.stacks import describe_stacks
from phalanx.coordinator.terms import Terms
from phalanx.errors import ConnectError, DeadlineExceeded, MembershipError, PeerLost, PhalanxError
from phalanx.telemetry import ClockEstimate
from phalanx.transport import Credentials, Deadline, Epoch, Wait, Waited, call, close_in_children
from phalanx.wire import (
    LINE_BREAK,
    Address,
    Ask,
    AskStacks,
    AskTime,
    Cause,
    Commit,
    Failed,
    Heard,
    Hello,
    Left,
    Message,
    Purpose,
    Reason,
    Records,
    Stacks,
    TellTime,
    Waiting,
    Welcome,
    encode,
)

_LIMIT_BYTES = 1 << 24  # the coordinator is trusted: its welcome names every member
_ATTEMPT_S = 2.0
_WORDS = 4000
_MOST_RECORDS_BYTES = 10**6
_log = logging.getLogger("phalanx")


class CoordinatorClient:
    """Joins a group, and keeps this worker informed about it.

    When the coordinator revokes an epoch, its ``Epoch`` ends every wait at once. The caller closes the ``Epoch``. A
    worker that takes steps calls ``done`` after each step, and ``wait_for_word`` returns the coordinator's answer.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        deadline: Deadline,
        *,
        credentials: Credentials | None = None,
        hosted_by: int | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials or Credentials()
        self._hosted_by = hosted_by
        self._whom = "the coordinator" if hosted_by is None else f"the coordinator, which rank {hosted_by} runs,"
        self.patience_s = Terms().patience_s if patience_s is None else patience_s
        """How long the other machine may be out of reach before a connection breaks; the coordinator may change it."""
        self.stall_s = Terms().stall_s
        """How long this worker waits for another one that does nothing; the coordinator may change it."""
        self._connection: Connection | None = self._connect(deadline)
        self.local_host = str(self._connection.socket.getsockname()[0])  # an address of this machine that works
        self._participant: Participant | None = None
        self._epoch: Epoch | None = None
        self._words: queue.SimpleQueue[tuple[Welcome, Epoch] | Commit | PhalanxError] = queue.SimpleQueue()
        self._one_at_a_time = threading.RLock()
        self._clock: ClockEstimate | None = None
        self._must_call = self._is_closed = False
        self._interest: object = None  # what the poll is made for
        self._poll = select.poll()
        self._wake_read, self._wake_write = map(close_in_children, socket.socketpair())
        self._thread = threading.Thread(target=self._live, name="phalanx-epoch", daemon=True)

    def join(self, hello: Hello, deadline: Deadline) -> tuple[Welcome, Epoch]:
        """Become a member, and return when an epoch has begun."""
        self._participant = Participant(hello, whom=self._whom, peer=self._hosted_by)
        with self._one_at_a_time:
            self._carry_out(self._participant.reached(time.monotonic()))
        self._thread.start()
        try:
            word = self.wait_for_word(deadline)
        except DeadlineExceeded:
            words = f"the group was not complete within {deadline.seconds:g} s: were all workers started?"
            raise ConnectError(words) from None
        except PeerLost as error:
            raise ConnectError(f"the coordinator hung up before the group was complete: {error}") from error
        assert isinstance(word, tuple), "a step that counts belongs to an epoch"
        return word

    def wait_for_word(self, deadline: Deadline) -> tuple[Welcome, Epoch] | Commit:
        """Return what the coordinator says next: an epoch that begins, or the commit of this worker's step.

        If this worker's membership has ended for good, raise the error that says why.
        """
        try:
            word = self._words.get(timeout=deadline.remaining_s())
        except queue.Empty:
            words = f"{self._whom} said nothing for {deadline.seconds:g} s: is it stopped, or is another worker slow?"
            raise DeadlineExceeded(words, peer=self._hosted_by) from None
        if isinstance(word, PhalanxError):
            self._words.put(word)  # the next caller gets it too
            raise word
        return word

    def done(self, epoch: Epoch, loss: float, digest: bytes) -> None:
        """Say that this worker has computed and exchanged its step; say nothing if the epoch is over."""
        self._do(lambda participant: participant.done(epoch.number, loss, digest) if epoch is self._epoch else [])

    def hold(self, epoch: Epoch, step: int) -> None:
        """Say that this worker, which was behind, has got the state of ``step`` from another worker."""
        # Another epoch may have the same number.
        self._do(lambda participant: participant.hold(epoch.number if epoch is self._epoch else NO_EPOCH, step))

    def halt(self, epoch: Epoch, reason: Reason, rank: int | None, words: str) -> None:
        """Stop all workers at this step, this one too, for something found in ``epoch``."""
        self._do(lambda participant: participant.halt(epoch.number, reason, rank, _fit(words)))

    def keep_clock(self, clock: ClockEstimate) -> None:
        """Ask the coordinator for its time every now and then, and let ``clock`` know the answers."""
        with self._one_at_a_time:
            self._clock = clock
            self._ask_time()

    def send_records(self, batch: bytes) -> None:
        """Let the coordinator write a batch of telemetry. It is lost if the connection is slow, or there is none."""
        connection = self._connection
        if connection and not connection.is_behind and len(batch) <= _MOST_RECORDS_BYTES:
            self._do(lambda _: [Tell(Records(batch))])

    def report(self, epoch: Epoch, cause: Cause, rank: int, words: str) -> None:
        """Tell the coordinator, and so all ranks, why this rank cannot continue in ``epoch``."""
        said = Failed(epoch.number, cause, rank, _fit(words))
        self._do(lambda _: [Tell(said)] if epoch is self._epoch else [])

    def leave(self, *, is_over: bool = False) -> None:
        """Leave the group without ending it for the other ranks, unless the run ``is_over``. Twice is harmless."""
        if not self._is_closed:
            self._do(lambda participant: participant.leave(is_over=is_over))
            self.close()

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._hang_up()
        self._wake_read.close()
        self._wake_write.close()
        while not self._words.empty():
            word = self._words.get()
            if isinstance(word, tuple):
                word[1].close()  # nobody has taken it

    def _do(self, act: Callable[[Participant], list[Move]]) -> None:
        with self._one_at_a_time:
            if self._participant:
                self._carry_out(act(self._participant))
                if self._connection and self._connection.is_behind:
                    self._wake()  # the thread sends the rest

    def _live(self) -> None:
        """Run the thread until this is closed. A mistake of ours must not leave this worker waiting."""
        assert self._participant
        try:
            while not self._is_closed:
                self._live_on(self._participant)
        except Exception as error:
            failure = MembershipError(f"this worker's connection to {self._whom} failed: {error!r}; start it again")
            self._carry_out([Abandon(failure), Stop(failure)])
            raise

    def _live_on(self, participant: Participant) -> None:
        """Read, do what is due, and connect again when the connection is lost."""
        ready = self._wait(participant)
        with self._one_at_a_time:
            if self._wake_read.fileno() in ready:
                self._wake_read.recv(4096)
            self._attend(participant)
            self._carry_out(participant.tick(time.monotonic()))
        if self._must_call and not self._is_closed:
            self._must_call = False
            self._call_again(participant)

    def _wait(self, participant: Participant) -> list[int]:
        """Return the descriptors that are ready, or none when something is due."""
        connection, due = self._connection, participant.next_tick
        interest = (connection, connection and connection.is_behind)
        if interest != self._interest:
            self._interest, self._poll = interest, select.poll()
            self._poll.register(self._wake_read, select.POLLIN)
            if connection:
                events = select.POLLIN | (select.POLLOUT if connection.is_behind else 0)
                self._poll.register(connection.socket, events)
        timeout_ms = None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1
        if connection and connection.has_more:
            timeout_ms = 0
        return [descriptor for descriptor, _ in self._poll.poll(timeout_ms)]

    def _attend(self, participant: Participant) -> None:
        if not self._connection:
            return
        if self._connection.is_behind:
            self._connection.send_nowait()
        try:
            for message in self._connection.read_nowait():
                self._hear(message, participant)
        except (OSError, PhalanxError) as error:
            self._hang_up()
            self._carry_out(participant.lost(str(error), time.monotonic()))

    def _hear(self, message: Message, participant: Participant) -> None:
        match message:
            case Left(rank=rank) if self._epoch:
                self._epoch.leave(rank)
            case Heard(patience_s=patience_s, stall_s=stall_s):
                self.patience_s, self.stall_s = patience_s, stall_s
                if self._connection:
                    self._connection.keep_alive(patience_s)
            case Ask():
                self._carry_out([Tell(_describe(participant.epoch, self._epoch.waiting if self._epoch else None))])
            case TellTime(asked_ns=asked_ns, now_ns=now_ns) if self._clock:
                self._clock.add(asked_ns, now_ns, time.monotonic_ns())
                if self._clock.is_unsure:
                    self._ask_time()
            case AskStacks(rank=rank):
                self._carry_out([Tell(Stacks(rank, describe_stacks()))])
            case _:
                pass
        self._carry_out(participant.hear(message, time.monotonic()))

    def _carry_out(self, moves: Iterable[Move]) -> None:
        for move in moves:
            match move:
                case Tell(message=message) if self._connection:
                    self._connection.send_nowait(encode(message))
                case HangUp():
                    self._hang_up()
                case Reconnect():
                    self._must_call = True
                case ReportWait() if self._epoch:
                    self._report_wait(self._epoch, REPORT_S)
                    self._ask_time()
                case Abandon(error=error) if self._epoch:
                    self._epoch.revoke(error)
                case Begin(welcome=welcome):
                    self._epoch = Epoch(welcome.epoch)
                    self._epoch.suspect_mismatch = partial(self._report_wait, self._epoch)
                    self._words.put((welcome, self._epoch))
                case Apply(commit=commit):
                    self._words.put(commit)
                case Stop(error=error):
                    self._words.put(error)
                case _:
                    pass  # there is no connection, or no epoch

    def _ask_time(self) -> None:
        if self._clock and self._connection:
            self._connection.send_nowait(encode(AskTime(time.monotonic_ns())))

    def _report_wait(self, epoch: Epoch, at_least_s: float = 0.0) -> None:
        """Tell the coordinator what this rank waits for, if it has waited for ``at_least_s``."""
        waited = epoch.waiting
        if waited and waited.longest_s >= at_least_s:
            report = _describe(epoch.number, waited)
            self._do(lambda _: [Tell(report)] if epoch is self._epoch else [])

    def _connect(self, deadline: Deadline) -> Connection:
        connected = call(self._addresses, deadline, self._credentials, Purpose.COORDINATOR, whom="the coordinator")
        return Connection(connected, "the coordinator", _LIMIT_BYTES, self.patience_s)

    def _call_again(self, participant: Participant) -> None:
        try:
            connection = self._connect(Deadline.after(_ATTEMPT_S))
        except (OSError, PhalanxError) as error:
            _log.info("%s", error)
            with self._one_at_a_time:
                self._carry_out(participant.lost(str(error), time.monotonic()))
            return
        with self._one_at_a_time:
            self._connection = connection
            if self._clock:
                self._clock.forget()  # another coordinator may be on another machine
            self._carry_out(participant.reached(time.monotonic()))  # nothing, if it has left meanwhile

    def _hang_up(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"!")


def _fit(words: str) -> str:
    """Return words as a message holds them: not too long, and with all lines but the first indented."""
    return words.rstrip().replace("\n", LINE_BREAK)[:_WORDS]


def _describe(epoch: int, waited: Waited | None) -> Waiting:
    """Return the message that says what this process waits for."""
    wait, _, waited_s = waited or (Wait((), ""), 0.0, {})
    return Waiting(
        epoch=epoch,
        ranks=wait.ranks,
        waited_s=tuple(waited_s[rank] for rank in wait.ranks),
        group=wait.group,
        sequence=wait.sequence,
        words=_fit(str(wait.words)),
        cpu_s=time.process_time(),
    )
