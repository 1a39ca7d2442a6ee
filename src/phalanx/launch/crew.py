"""The workers of one run: starting them, printing their output, and ending all of them."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import IO, BinaryIO, Self

from phalanx.launch import worker
from phalanx.launch.env import Launch, worker_environ
from phalanx.launch.output import Lines, Tail, prefix, write_lines
from phalanx.launch.verdict import End, first_failure
from phalanx.transport import shortage_in_words, usable_cpus

_LOOK_S = 0.05  # how often to check workers that print nothing
_READ_BYTES = 1 << 16
_GRACE_S = 2.0  # after a worker failed, until the others get a signal: they notice by themselves and report more
_LAST_S = 3.0  # from the signal to stop until SIGKILL


class Signals:
    """Collects SIGINT and SIGTERM during the block instead of letting them interrupt it."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._keep) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)

    def _keep(self, number: int, _: FrameType | None) -> None:
        self.received.append(signal.Signals(number))


class Crew:
    """All ``size`` workers of one run, called ``noun`` 0, 1, ...; workers left at the end of the block are killed.

    When a worker fails or a signal arrives, the workers have ``grace_s`` to end; when a second signal arrives, 3 s.
    """

    def __init__(self, noun: str, size: int, grace_s: float = _LAST_S) -> None:
        self._grace_s = grace_s
        self._noun = noun
        self._size = size
        self.ends: list[End] = []
        self._running: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._steps: list[tuple[float, signal.Signals]] = []  # when to send which signal to the workers that are left
        self._is_stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.kill()
        self._selector.close()

    def start(self, launch: Launch, command: list[str]) -> None:
        """Start the next worker."""
        number = len(self._running) + len(self.ends)
        with shortage_in_words(f"cannot start {self._noun} {number}"):
            self._running.append(_Worker(launch, command, number, self._noun, self._size, self._selector))

    def work(self, signals: Signals) -> None:
        """Print the workers' output until all have ended. When one fails or a signal arrives, stop the others."""
        heard = 0
        while self._running:
            for key, _ in self._selector.select(_LOOK_S):
                key.data.pass_on_nowait()
            now = time.monotonic()
            self._note_ends(now)
            if not self._steps and not self._is_stopping and first_failure(self.ends):
                self._steps = [(now + _GRACE_S, signal.SIGTERM), (now + _GRACE_S + self._grace_s, signal.SIGKILL)]
            if len(signals.received) > heard:
                last_s = _LAST_S if heard else self._grace_s
                heard = len(signals.received)
                self._steps = [(now, signals.received[-1]), (now + last_s, signal.SIGKILL)]
            while self._steps and self._steps[0][0] <= now:
                self._is_stopping = True
                for each in self._running:
                    each.send(self._steps[0][1])
                del self._steps[0]

    def _note_ends(self, now: float) -> None:
        for each in list(self._running):
            code = each.poll()
            if code is not None:
                self._running.remove(each)
                end = End(rank=each.rank, code=code, at=now, stderr=each.finish(), was_stopped=self._is_stopping)
                self.ends.append(end)


class _Worker:
    """The process of one worker, which leads a session of its own, and its output."""

    def __init__(
        self,
        launch: Launch,
        command: list[str],
        number: int,
        noun: str,
        size: int,
        selector: selectors.BaseSelector,
    ) -> None:
        self.rank = number
        before = [prefix(noun, number, size, is_coloured=each.isatty()) for each in (sys.stdout, sys.stderr)]
        self._process = subprocess.Popen(  # noqa: S603 - the user's own program
            [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), *command],
            env=worker_environ(launch, threads=max(1, usable_cpus() // size)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that processes it starts can be stopped with it
        )
        assert self._process.stdout
        assert self._process.stderr
        self._tail = Tail()
        self._pipes = [
            _Pipe(self._process.stdout, sys.stdout.buffer, before[0], selector),
            _Pipe(self._process.stderr, sys.stderr.buffer, before[1], selector, self._tail),
        ]

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker and to the processes it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def finish(self) -> str:
        """Kill processes that it left behind, print its unread output, and return the end of its stderr."""
        self.send(signal.SIGKILL)
        for pipe in self._pipes:
            pipe.finish()
        return self._tail.text()

    def kill(self) -> None:
        """Kill it at once. Its unread output is lost."""
        self.send(signal.SIGKILL)
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()


class _Pipe:
    """Copies one output stream of a worker to ours."""

    def __init__(
        self,
        source: IO[bytes],
        target: BinaryIO,
        before: bytes,
        selector: selectors.BaseSelector,
        tail: Tail | None = None,
    ) -> None:
        os.set_blocking(source.fileno(), False)
        selector.register(source, selectors.EVENT_READ, self)
        self._source = source
        self._target = target
        self._prefix = before
        self._selector = selector
        self._tail = tail
        self._lines = Lines()

    def pass_on_nowait(self) -> bool:
        """Copy what is there, and return whether there may be more."""
        if self._source.closed:
            return False
        try:
            data = os.read(self._source.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if self._tail:
            self._tail.feed(data)
        write_lines(self._target, self._prefix, self._lines.feed(data))
        return True

    def finish(self) -> None:
        """Copy everything that is there, and the last line even if it has no line end."""
        while self.pass_on_nowait():
            pass
        write_lines(self._target, self._prefix, self._lines.end())
        self.close()

    def close(self) -> None:
        """Stop reading. Closing twice is harmless."""
        if not self._source.closed:
            self._selector.unregister(self._source)
            self._source.close()
