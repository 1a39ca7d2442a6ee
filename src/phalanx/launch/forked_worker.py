"""A worker that is a fork of the calling program, so that it can run any function that the program has."""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from io import FileIO
from types import TracebackType
from typing import Any, NoReturn

from phalanx.errors import ConfigError, PhalanxError
from phalanx.launch.connect import connect
from phalanx.launch.worker import die_with
from phalanx.wire import encode_value

_READ_BYTES = 1 << 20

Function = Callable[..., Any]  # Any: whatever it takes, behind the group, and returns


class ForkedWorker:
    """The parent's end: a child process that waits for ``begin``, its output, and a socket on which its outcome comes.

    ``outcome`` is a dict in bytes: with ``result``, or with ``error`` (one line), ``traceback``, ``is_consequence`` and
    ``at``.
    """

    def __init__(
        self, rank: int, function: Function, arguments: tuple[object, ...], options: Mapping[str, Any]
    ) -> None:
        self.rank = rank
        self.code: int | None = None
        self.channel, theirs = socket.socketpair()
        (out, out_writer), (err, err_writer) = os.pipe(), os.pipe()
        parent = os.getpid()
        with (
            warnings.catch_warnings()
        ):  # Python 3.12 warns of any other thread; docs/quickstart.md says what may happen
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _live(parent, theirs, (out_writer, err_writer), function, arguments, options)
        theirs.close()
        os.close(out_writer)
        os.close(err_writer)
        self.out, self.err = FileIO(out), FileIO(err)
        for source in (self.out, self.err, self.channel):
            os.set_blocking(source.fileno(), False)
        self.outcome = bytearray()
        """What it has sent; empty if it was killed."""

    def begin(self, environ: Mapping[str, str]) -> None:
        """Let it join its group, as the environment says."""
        with contextlib.suppress(ConnectionError):  # it has died already
            self.channel.setblocking(True)
            self.channel.sendall(json.dumps(dict(environ)).encode() + b"\n")
            self.channel.setblocking(False)

    def read_nowait(self) -> bool:
        """Take what it has sent of its outcome; return False at the end."""
        try:
            data = self.channel.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self.outcome += data
        return bool(data)

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it, after taking its outcome; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                while select.select([self.channel], [], [], 0)[0] and self.read_nowait():
                    pass
        return self.code

    def close(self) -> None:
        """Kill it, and the processes that it has started, if it still runs."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # it may not lead a session of its own yet
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for source in (self.out, self.err, self.channel):
            source.close()


def _live(
    parent: int,
    channel: socket.socket,
    outputs: tuple[int, int],
    function: Function,
    arguments: tuple[object, ...],
    options: Mapping[str, Any],
) -> NoReturn:
    """Be the child: run the function, send what became of it, and end."""
    try:
        os.setsid()
        die_with(parent)
        gc.freeze()  # what the parent has made is not for this process to tear down
        _redirect(outputs)
        _forget_signals()
        environ = json.loads(channel.makefile("rb").readline())
        os.environ.clear()
        os.environ.update(environ)
        channel.sendall(_observe(int(environ["PHALANX_RANK"]), function, arguments, options))
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def _forget_signals() -> None:
    """Let signals do what they do by default: a notebook wakes its event loop, which is not in this process."""
    with contextlib.suppress(ValueError):  # the parent forked in a thread that was not its main thread
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _redirect(outputs: tuple[int, int]) -> None:
    """Write to the parent's pipes. In a notebook, ``sys.stdout`` belongs to threads that are not in this process."""
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, *outputs)):
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for number in (1, 2)
    )


def _observe(rank: int, function: Function, arguments: tuple[object, ...], options: Mapping[str, Any]) -> bytes:
    try:
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # the parent's other threads of OpenMP are not here, and more would wait for them
        with connect(**options) as group:
            result = function(group, *arguments)
        return encode_value({"result": result}, "the outcome")
    except BaseException as error:  # noqa: BLE001 - it is raised in the parent
        if isinstance(error, ConfigError) and "the outcome['result']" in str(error):
            error = ConfigError(str(error).replace("the outcome['result']", f"what rank {rank} returned"))
        words = "".join(traceback.format_exception_only(error)).strip()
        is_consequence = isinstance(error, PhalanxError) and getattr(error, "peer", rank) not in (rank, None)
        failure = {
            "error": words,
            "traceback": "".join(traceback.format_exception(type(error), error, _skip_own_frame(error))),
            "is_consequence": is_consequence,
            "at": time.monotonic(),
        }
        return encode_value(failure, "the failure")


def _skip_own_frame(error: BaseException) -> TracebackType | None:
    """Return the traceback of the function, without the frame in which we called it."""
    trace = error.__traceback__
    return trace.tb_next if trace and trace.tb_next else trace
