"""A worker's connection to the gradient server."""

import contextlib
import math
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from phalanx.buffers import Array, as_bytes
from phalanx.errors import (
    BadFrame,
    CollectiveMismatch,
    ConfigError,
    DeadlineExceeded,
    Halted,
    JoinRefused,
    PeerLost,
    PhalanxError,
    ProtocolError,
)
from phalanx.gradient_server.collect import Reduced
from phalanx.gradient_server.entrenar import EntrenarWire
from phalanx.gradient_server.halt import to_error
from phalanx.gradient_server.lanes import Lanes
from phalanx.gradient_server.peer import OurWire, Peer, Silence, Wire
from phalanx.gradient_server.server import check_dialect
from phalanx.transport import Credentials, Deadline, Epoch, StreamLink, Wait, call, connect, format_address
from phalanx.wire import Address, Purpose, gradient

_SERVER = 0  # a worker has no other peer
_LOOK_S = 0.5  # how often to look for signs of life
_LEAST_STALL_S = 2.0  # signs of life come every 0.5 s, on a busy machine a little later


class WorkerClient:
    """A worker of a gradient server. The constructor returns when this worker has joined; others may still be missing.

    ``addresses`` are tried until one answers, because the server may still be starting. With ``dialect="entrenar"``
    the worker joins an entrenar server. Every wait ends after ``timeout_s``. After an error the client cannot be used.

    With ``lanes``, which must be the server's number, a gradient is the pieces of this worker's lanes, one row after
    another, and the result is the sum of all lanes, as long as one row.
    """

    def __init__(
        self,
        addresses: Address | Sequence[Address],
        *,
        name: str = "",
        credentials: Credentials = Credentials(),  # noqa: B008 - it is frozen
        dialect: str | None = None,
        lanes: int | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        check_dialect(dialect, lanes)
        where = [addresses] if isinstance(addresses, Address) else list(addresses)
        self._server = f"the gradient server at {', '.join(map(format_address, where))}"
        self._timeout_s = timeout_s
        self._peer = self._reach(where, credentials, EntrenarWire() if dialect else OurWire())
        self._sent: deque[tuple[gradient.Gradient, float]] = (
            deque()
        )  # gradients without a mean so far, and when they were sent
        self._out: Array | None = None
        self._target: Array = np.empty(0, np.float32)
        self._means: deque[Reduced] = deque()
        self._shards: deque[gradient.WorkerSamples] = deque()
        self._joined: gradient.WorkerJoined | None = None
        self._is_ended = False
        self._error: PhalanxError | None = None
        self._epoch: Epoch | None = None
        self._stall_s = math.inf
        try:
            joined = self._join(name)
            self._rows = 1 if lanes is None else len(Lanes(lanes, joined.workers).pieces(joined.worker))
        except BaseException:
            self.close()
            raise
        self.worker = joined.worker
        """This worker's number, counted from 0."""
        self.workers = joined.workers
        """How many workers there are."""

    def watch(self, epoch: Epoch, stall_s: float) -> None:
        """End every later wait when ``epoch`` is revoked, and say in it that this worker waits for all the others.

        Then the coordinator finds a worker that is stopped: the server cannot tell it from one that is slow. A server
        that is stopped shows no sign of life. Waits for it end after ``stall_s``, or 2 s if that is shorter.
        """
        self._epoch = epoch
        self._stall_s = max(stall_s, _LEAST_STALL_S)

    def receive_shard(self) -> gradient.WorkerSamples | None:
        """Wait for the samples of the next step, and return them; None when there is no more work."""
        self._move(lambda: bool(self._shards or self._is_ended), "waiting for its samples")
        return self._shards.popleft() if self._shards else None

    def send(
        self,
        step: int,
        gradients: Array,
        what: gradient.What,
        *,
        loss: float = 0.0,
        correct: int = 0,
        samples: int = 1,
        sizes: Sequence[int] = (),
    ) -> None:
        """Send a gradient, and return when it has left. The mean may begin to arrive meanwhile.

        ``samples`` is the weight of the gradient. ``sizes`` are the sizes of its components, if it has several.
        """
        if gradients.dtype != np.float32:
            raise ConfigError(f"gradients are sent as f32, and these are {gradients.dtype}: convert them")
        flat = np.ascontiguousarray(gradients).reshape(-1)
        sizes = tuple(sizes) or (self._row_length(len(flat)),) * self._rows
        message = gradient.Gradient(step, what, len(flat), sizes, loss, correct, samples)
        self._peer.say(message, as_bytes(flat))
        self._sent.append((message, time.perf_counter()))
        self._move(lambda: self._peer.is_quiet, f"sending step {step}, {what}")

    def receive(self) -> Reduced:
        """Wait for the mean of the oldest gradient without one, and return it."""
        if not self._sent and not self._means:
            raise ConfigError("there is no mean to wait for: send a gradient first")
        self._move(lambda: bool(self._means or self._is_ended), "waiting for the mean")
        if not self._means:
            sent, _ = self._sent[0]
            words = f"{self._server} stopped at step {sent.step}, before it had the mean of {sent.what}"
            raise Halted(f"{words}: look at its log", step=sent.step)
        return self._means.popleft()

    def exchange(
        self,
        step: int,
        gradients: Array,
        what: gradient.What,
        *,
        loss: float = 0.0,
        correct: int = 0,
        samples: int = 1,
        sizes: Sequence[int] = (),
        out: Array | None = None,
    ) -> Reduced:
        """Send a gradient and return its mean, which arrives meanwhile. ``out`` is where to put it, if given.

        ``out`` may be ``gradients`` itself. With lanes the sum arrives when all is sent, and ``out`` may be a row of
        ``gradients``. After an error the content of ``out`` is undefined.
        """
        length = self._row_length(gradients.size)
        if out is not None and not (out.dtype == np.float32 and out.flags.c_contiguous and out.size == length):
            raise ConfigError(f"the mean needs {length} contiguous f32, and out has {out.size} {out.dtype}")
        self._out = None if out is None else out.reshape(-1)
        self.send(step, gradients, what, loss=loss, correct=correct, samples=samples, sizes=sizes)
        try:
            return self.receive()
        finally:
            self._out = None

    def close(self) -> None:
        """Close the connection. Closing twice is harmless."""
        self._peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _row_length(self, elements: int) -> int:
        length, rest = divmod(elements, self._rows)
        if rest:
            raise ConfigError(
                f"{elements} elements cannot be cut into {self._rows} pieces of one length: send a row for each piece"
            )
        return length

    def _reach(self, where: Sequence[Address], credentials: Credentials, wire: Wire) -> Peer:
        deadline = Deadline.after(self._timeout_s)
        if isinstance(wire, EntrenarWire):
            connected = connect(where, deadline, whom=self._server)
        else:
            connected = call(where, deadline, credentials, Purpose.STAR, whom=self._server)
        wire.trust()
        return Peer(StreamLink(connected, _SERVER), wire)

    def _join(self, name: str) -> gradient.WorkerJoined:
        self._peer.say(gradient.WorkerJoin(name=name))
        self._move(lambda: bool(self._joined or self._is_ended), "joining")
        if self._joined is None:
            raise JoinRefused(f"{self._server} refused this worker: has it all the workers that it expects?")
        return self._joined

    def _move(self, is_done: Callable[[], bool], doing: str) -> None:
        """Send and receive until ``is_done``, or raise the error that prevents it."""
        if self._epoch is None:
            self._move_on(is_done, doing)
            return
        others = tuple(number for number in range(self.workers) if number != self.worker)
        self._epoch.begin_wait(Wait(others, doing))
        try:
            self._move_on(is_done, doing)
        finally:
            self._epoch.end_wait()

    def _move_on(self, is_done: Callable[[], bool], doing: str) -> None:
        deadline = Deadline.after(self._timeout_s)
        silence = Silence()
        while self._error is None and not is_done():
            try:
                self._peer.speak()
                self._listen()
            except PeerLost:
                self._hear_last_words()
                if not is_done():
                    self._fail(
                        PeerLost(f"{self._server} closed the connection while this worker was {doing}: look at its log")
                    )
            except ProtocolError as error:
                self._fail(type(error)(f"{self._server} cannot be understood: {error}"))
            else:
                silence.look(self._peer.bytes_heard, time.monotonic())
                if not is_done():
                    self._check_times(silence, deadline, doing)
                if self._error is None and not is_done():
                    self._wait(min(deadline, Deadline.after(_LOOK_S), key=lambda each: each.at))
        if self._error and not is_done():
            raise self._error

    def _check_times(self, silence: Silence, deadline: Deadline, doing: str) -> None:
        """Fail if the server shows no sign of life, or if the deadline has passed."""
        if silence.seconds >= self._stall_s:
            words = (
                f"{self._server} has shown no sign of life for {silence.seconds:.1f} s while this worker was {doing}: "
                "its process is stopped, or stuck; look at that process and start all workers again, or allow more "
                f"than {self._stall_s:g} s with --stall or PHALANX_STALL"
            )
            self._fail(DeadlineExceeded(words))
        elif deadline.has_passed:
            words = f"{self._server} did not answer within {self._timeout_s:g} s while this worker was {doing}"
            self._fail(DeadlineExceeded(f"{words}: look at the other workers, or allow more time"))

    def _wait(self, deadline: Deadline) -> bool:
        """Wait until something can be sent or received; return False if the deadline passes first."""
        if self._peer.has_more:
            return True
        poll = select.poll()
        if self._epoch:
            poll.register(self._epoch, select.POLLIN)
        # While there is more to send, do not wake up for arriving data, unless it is an earlier mean: the server reads
        # on only when that mean has been taken.
        is_listening = self._peer.is_quiet or len(self._sent) > 1
        events = (select.POLLIN if is_listening else 0) | (0 if self._peer.is_quiet else select.POLLOUT)
        poll.register(self._peer, events)
        has_happened = not deadline.has_passed and bool(poll.poll(deadline.remaining_s() * 1000))
        if self._epoch:
            self._epoch.check()
        return has_happened

    def _fail(self, error: PhalanxError) -> None:
        self._error = self._error or error  # the first error is the cause of the others

    def _hear_last_words(self) -> None:
        """Look for a halt in what arrived before the connection broke."""
        with contextlib.suppress(PeerLost, ProtocolError):
            self._listen()
            while self._peer.has_more:
                self._listen()

    def _listen(self) -> None:
        for event in self._peer.hear():
            match event:
                case gradient.GradientBegan(message=gradient.Mean() as mean):
                    self._make_room(mean)
                case gradient.MessageEnded(message=message):
                    self._take(message)
                case _:
                    raise BadFrame(f"a gradient server must not send {type(event.message).__name__}")

    def _make_room(self, mean: gradient.Mean) -> None:
        sent = self._sent[0][0] if self._sent else None
        if sent is None or (sent.step, sent.what, sent.elements) != (mean.step, mean.what, mean.elements * self._rows):
            raise CollectiveMismatch(f"it answered with {mean}, but this worker sent {sent or 'nothing'}")
        self._target = np.empty(mean.elements, np.float32) if self._out is None else self._out
        self._peer.room = as_bytes(self._target)

    def _take(self, message: gradient.Message) -> None:
        match message:
            case gradient.Mean():
                _, since = self._sent.popleft()
                self._means.append(Reduced.of(message, self._target, time.perf_counter() - since))
            case gradient.WorkerSamples():
                self._shards.append(message)
            case gradient.WorkerJoined():
                self._joined = message
            case gradient.WorkerRefused(words=words):
                self._fail(JoinRefused(f"{self._server} refused this worker: {words}"))
            case gradient.ServerHalt():
                self._fail(to_error(message))
            case gradient.ServerEnd():
                self._is_ended = True
            case _:
                raise BadFrame(f"a gradient server must not send {type(message).__name__}")
