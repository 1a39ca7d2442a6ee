"""Starts workers by forking a process that has imported their modules: in milliseconds, instead of seconds.

The launcher runs this file as a module, and ``Nursery`` is the launcher's end. A request is a line of JSON with the
descriptors that the worker gets; the answer is the worker's number. Later comes a line with its exit code.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Self

from phalanx.errors import ConfigError
from phalanx.launch import worker

_MOST_BYTES = 1 << 20
_START_S = 120.0
_LOOK_S = 0.02
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Nursery:
    """The launcher's end. ``module`` is imported once, with the environment ``environ``, and runs in every worker.

    If the module has a function ``prepare``, that is called once, too.
    """

    def __init__(self, module: str, environ: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [
                    *(sys.executable, "-I", "-S", worker.__file__, str(os.getpid())),
                    *("-m", "phalanx.launch.nursery", str(theirs.fileno()), module),
                ],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the launcher, which decides what workers get
            )

    @property
    def pid(self) -> int:
        """The process that starts workers."""
        return self._process.pid

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]) -> "Sprout":
        """Start a worker. ``descriptors`` are its stdout and stderr, and then those that keep their numbers."""
        request = {"arguments": list(arguments), "environ": dict(environ), "keep": list(descriptors[2:])}
        try:
            socket.send_fds(self._ours, [json.dumps(request).encode()], list(descriptors))
            deadline = time.monotonic() + _START_S
            while (answer := self._read(deadline - time.monotonic())) is not None:
                if "started" in answer:
                    return Sprout(answer["started"], self)
        except OSError as error:
            words = f"process {self.pid}, which starts the workers, has ended ({error.strerror})"
            raise ConfigError(f"cannot start a worker: {words}; look at the memory of this machine") from error
        raise ConfigError(f"cannot start a worker: process {self.pid}, which starts them, does not answer; look at it")

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a worker, or minus the signal that killed it; None while it runs."""
        while self._read(0) is not None:
            pass
        if pid not in self._codes and self._process.poll() is not None:
            return -signal.SIGKILL  # workers die with the process that has started them
        return self._codes.get(pid)

    def wait_for(self, pid: int) -> None:
        """Wait until a worker has ended."""
        while self.code_of(pid) is None:
            select.select([self._ours], [], [], _LOOK_S)

    def close(self) -> None:
        """End the process that starts workers. Workers that still run die with it."""
        self._ours.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, wait_s: float) -> dict[str, int] | None:
        """Return the next message, if one comes in time, after noting the exit code that it may tell."""
        if not select.select([self._ours], [], [], max(0.0, wait_s))[0]:
            return None
        try:
            data = self._ours.recv(_MOST_BYTES)
        except ConnectionError:
            data = b""  # it was killed, and had not read all requests
        if not data:
            self._process.wait()
            return None
        answer: dict[str, int] = json.loads(data)
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer


class Sprout:
    """A worker that a nursery has started."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self._nursery = nursery

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; None while it runs."""
        return self._nursery.code_of(self.pid)

    def wait(self) -> None:
        """Wait until it has ended."""
        self._nursery.wait_for(self.pid)


def main() -> None:
    """Import the module, then fork a worker for each request. In a worker, run the module as a program."""
    channel, module = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    imported = importlib.import_module(module)
    if hasattr(imported, "prepare"):
        imported.prepare()
    gc.collect()
    gc.freeze()  # or the collector would touch, and so copy, all pages that workers share
    arguments = _serve(channel)
    if arguments is None:
        return
    sys.argv = [module, *arguments]
    del sys.modules[module]  # it was imported, and runs as __main__ now
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(channel: socket.socket) -> list[str] | None:
    """Fork workers until the launcher goes away. Return a worker's arguments in the worker, and None at the end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    server = os.getpid()
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ends(channel)
        if channel.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(channel, _MOST_BYTES, 16)
        if not data:
            return None
        request = json.loads(data)
        pid = os.fork()
        if pid == 0:
            channel.close()
            os.close(woken)
            signal.set_wakeup_fd(-1)
            os.close(wake)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(server, request, descriptors)
            return list(request["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps({"started": pid}).encode())


def _report_ends(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(server: int, request: dict[str, list[int] | dict[str, str]], descriptors: Sequence[int]) -> None:
    """Make this process a worker: in a session of its own, with its environment and descriptors."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        sys.exit(1)
    for descriptor, number in zip(descriptors, [1, 2, *request["keep"]], strict=True):
        if descriptor != number:
            os.dup2(descriptor, int(number))
            os.close(descriptor)
        os.set_inheritable(int(number), True)
    environ = request["environ"]
    assert isinstance(environ, dict), "that is what we send"
    os.environ.clear()
    os.environ.update(environ)


if __name__ == "__main__":
    main()
