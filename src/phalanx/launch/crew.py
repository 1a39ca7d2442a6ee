"""The workers of one run: starting them, printing their output, and ending all of them."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Self, TextIO

from phalanx.launch import worker
from phalanx.launch.env import Launch, wants_colour, worker_environ
from phalanx.launch.nursery import Nursery
from phalanx.launch.output import Lines, RankLogs, Tail, prefix, write_lines
from phalanx.launch.rank_channel import RankChannel
from phalanx.launch.stopping import Stopping
from phalanx.launch.supervision import LEFT, LOST, Supervision
from phalanx.launch.verdict import End, Name
from phalanx.transport import shortage_in_words, usable_cpus

_LOOK_S = 0.05  # how often to check workers that print nothing
_READ_BYTES = 1 << 16


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
    """All ``size`` workers of one run; workers left at the end of the block are killed.

    A worker is called by its rank as soon as that is known. ``stopping`` decides how workers end when one fails or a
    signal arrives. A worker that is suspended for ``stall_s`` before it has joined is killed: the others wait for it,
    and the coordinator does not know it yet. With ``supervision`` the run is elastic: a worker that is killed is
    replaced by one that runs ``replacement``. ``count_steps`` returns how many steps the run has taken, and
    ``has_others`` whether others than these processes are in it. With ``nursery`` workers are forked there, and all
    commands must be for its module. ``logs`` get the workers' output, too.
    """

    def __init__(
        self,
        size: int,
        stopping: Stopping,
        stall_s: float,
        supervision: Supervision | None = None,
        replacement: Sequence[str] = (),
        count_steps: Callable[[], int] = lambda: 0,
        has_others: Callable[[Collection[int]], bool] = lambda _: False,
        nursery: Nursery | None = None,
        logs: RankLogs | None = None,
    ) -> None:
        self._logs = logs
        self._size = size
        self._stopping = stopping
        self._stall_s = stall_s
        self._supervision = supervision
        self._replacement = list(replacement)
        self._vacant: list[Launch] = []
        self._count_steps = count_steps
        self._has_others = has_others
        self._pids: set[int] = set()
        self._nursery = nursery
        self._asked_for = 0
        self.ends: list[End] = []
        self.is_lost = False
        """Whether so many workers of an elastic run have died that its state is lost."""
        self._running: list[_Worker] = []
        with shortage_in_words("cannot start workers"):
            self._selector = selectors.DefaultSelector()
            self._channel = RankChannel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.kill()
        self._selector.close()
        self._channel.close()

    def start(self, launch: Launch, command: list[str]) -> None:
        """Start the next worker."""
        number = len(self._running) + len(self.ends)
        name = Name("worker", number) if launch.rank is None else Name("rank", launch.rank)
        with shortage_in_words(f"cannot start {name}"):
            shared = self._selector, self._channel, self._nursery, self._logs
            self._running.append(_Worker(launch, command, number, name, self._size, *shared))
        self._pids.add(self._running[-1].pid)

    def work(self, signals: Signals) -> None:
        """Print the workers' output until all have ended. When one fails or a signal arrives, stop the others."""
        heard = 0
        while (self._running or (self._supervision and self._supervision.waiting)) and not self.is_lost:
            ready = self._selector.select(_LOOK_S)
            self._channel.read_nowait()
            for key, _ in ready:
                key.data.pass_on_nowait()
            now = time.monotonic()
            self._end_suspended(now)
            self._note_ends(now)
            self._replace_dead(now)
            have_joined = self._have_joined()
            if any(end.code != 0 for end in self.final_ends):
                self._stopping.fail(now, have_joined=have_joined)
            for number in signals.received[heard:]:
                self._stopping.ask(now, number, have_joined=have_joined)
                heard += 1
            for number in self._stopping.due(now):
                for each in self._running:
                    each.stop(number)

    @property
    def final_ends(self) -> list[End]:
        """The ends of workers that nobody has replaced or will replace, except of those that were asked to leave."""
        if self._supervision is None:
            return self.ends
        are_final = self._supervision.reason is not None
        return [end for end in self.ends if (are_final or end.code >= 0 or end.was_stopped) and end.code != LEFT]

    @property
    def joined(self) -> list[int]:
        """The processes of the workers that run and have joined."""
        return [each.pid for each in list(self._running) if each.has_joined]

    def start_another(self) -> None:
        """Start one more worker, as soon as ``work`` comes to it. Any thread may call this."""
        self._asked_for += 1

    def _have_joined(self) -> bool:
        """Whether there is a group whose members may have something to save."""
        if self._supervision:
            return any(each.has_joined for each in self._running)
        return len(self._channel.ranks) == self._size

    def _replace_dead(self, now: float) -> None:
        if self._supervision is None or self._stopping.has_begun or self.is_lost:
            return
        if self._supervision.waiting:  # to count steps may take a while
            for _ in range(self._supervision.take_due(self._count_steps(), now)):
                self.start(self._vacant.pop(0), self._replacement)
        while self._asked_for and len(self._vacant) > self._supervision.waiting and not self._supervision.is_over:
            self._asked_for -= 1
            self.start(self._vacant.pop(0), self._replacement)
        if self._supervision.is_over:
            for each in self._running:
                if not each.has_joined:
                    each.dismiss()  # it came too late

    def _end_suspended(self, now: float) -> None:
        for each in self._running:
            if not each.has_joined and each.suspended_s(now) >= self._stall_s:
                each.give_up(f"it was suspended for {self._stall_s:g} s before it joined the group")

    def _note_ends(self, now: float) -> None:
        for each in list(self._running):
            code = each.poll()
            if code is not None:
                self._running.remove(each)
                self._channel.read_nowait()  # it may have joined just before it ended
                stderr = each.finish()
                was_stopped = self._stopping.has_begun
                end = End(each.name, code=code, at=now, stderr=stderr, was_stopped=was_stopped)
                if each.is_dismissed:
                    continue
                self.ends.append(end)
                if self._supervision:
                    self._vacant.append(each.launch)
                    self._supervision.note_end(end, self._count_steps(), len(self._running), now)
                    if not was_stopped and (code < 0 or code == LEFT):
                        what = "left, as it was asked to" if code == LEFT else end.manner
                        sys.stderr.write(f"phalanx: {end.name} {what}; the run goes on\n")
                        sys.stderr.flush()
                    had_part = each.has_joined and code < 0 and not was_stopped
                    is_last = had_part and not any(other.has_joined for other in self._running)
                    self.is_lost |= code == LOST or (is_last and not self._has_others(self._pids))


class _Worker:
    """The process of one worker, which leads a session of its own, and its output."""

    def __init__(
        self,
        launch: Launch,
        command: list[str],
        number: int,
        name: Name,
        size: int,
        selector: selectors.BaseSelector,
        channel: RankChannel,
        nursery: Nursery | None,
        logs: RankLogs | None,
    ) -> None:
        self.launch = launch
        self._logs = logs
        self._number = number
        self._first_name = name
        self._size = size
        self._channel = channel
        self._suspended_at: float | None = None
        self._last_words = ""
        self.is_dismissed = False
        """Whether it was ended because it is not needed."""
        environ = worker_environ(
            replace(launch, channel=channel.name_for(number)), threads=max(1, usable_cpus() // size)
        )
        (out, out_writer), (err, err_writer) = os.pipe(), os.pipe()
        try:
            self._process = (
                nursery.start(command[2:], environ, [out_writer, err_writer, channel.writer])
                if nursery
                else _execute(command, environ, out_writer, err_writer, channel.writer)
            )
        except BaseException:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.close(out_writer)
            os.close(err_writer)
        self._tail = Tail()
        self._pipes = [
            _Pipe(FileIO(out), sys.stdout, self, selector),
            _Pipe(FileIO(err), sys.stderr, self, selector, self._tail),
        ]

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def name(self) -> Name:
        """What to call it: its rank, if that is known."""
        rank = self._channel.ranks.get(self._number)
        return self._first_name if rank is None else Name("rank", rank)

    @property
    def has_joined(self) -> bool:
        """Whether it has told its rank."""
        return self._number in self._channel.ranks

    def write(self, lines: list[bytes], target: BinaryIO, *, is_coloured: bool) -> None:
        """Print lines that it has written, each with its name in front."""
        write_lines(target, prefix(self.name, self._size, is_coloured=is_coloured), lines)
        if self._logs:
            self._logs.write(self.name, lines)

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; None while it runs."""
        return self._process.poll()

    def suspended_s(self, now: float) -> float:
        """Return for how long it has been suspended; 0 if it runs or has ended, or where the system does not tell."""
        state = ""
        with contextlib.suppress(OSError):  # it has ended, or this is not Linux
            state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        if state != "T":
            self._suspended_at = None
        elif self._suspended_at is None:
            self._suspended_at = now
        return 0.0 if self._suspended_at is None else now - self._suspended_at

    def give_up(self, words: str) -> None:
        """Kill it; ``words`` say why, after all that it wrote to stderr."""
        self._last_words = words
        self._send(signal.SIGKILL)

    def dismiss(self) -> None:
        """Kill it because it is not needed."""
        self.is_dismissed = True
        self._send(signal.SIGKILL)

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to the worker and to the processes it started, and let it act on it if it was suspended."""
        self._send(number)
        self._send(signal.SIGCONT)

    def finish(self) -> str:
        """Kill processes that it left behind, print its unread output, and return the end of its stderr."""
        self._send(signal.SIGKILL)
        for pipe in self._pipes:
            pipe.finish()
        return self._tail.text() + self._last_words

    def kill(self) -> None:
        """Kill it at once. Its unread output is lost."""
        self._send(signal.SIGKILL)
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _execute(
    command: Sequence[str], environ: Mapping[str, str], out: int, err: int, channel: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the user's own program
        [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), *command],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        pass_fds=[channel],
        start_new_session=True,  # so that processes it starts can be stopped with it
    )


class _Pipe:
    """Copies one output stream of a worker to ours."""

    def __init__(
        self,
        source: FileIO,
        target: TextIO,
        worker: _Worker,
        selector: selectors.BaseSelector,
        tail: Tail | None = None,
    ) -> None:
        os.set_blocking(source.fileno(), False)
        selector.register(source, selectors.EVENT_READ, self)
        self._source = source
        self._target = target.buffer
        self._is_coloured = wants_colour(is_terminal=target.isatty())
        self._worker = worker
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
        self._write(self._lines.feed(data))
        return True

    def finish(self) -> None:
        """Copy everything that is there, and the last line even if it has no line end."""
        while self.pass_on_nowait():
            pass
        self._write(self._lines.end())
        self.close()

    def close(self) -> None:
        """Stop reading. Closing twice is harmless."""
        if not self._source.closed:
            self._selector.unregister(self._source)
            self._source.close()

    def _write(self, lines: list[bytes]) -> None:
        self._worker.write(lines, self._target, is_coloured=self._is_coloured)
