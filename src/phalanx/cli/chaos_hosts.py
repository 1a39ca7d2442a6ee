"""A stormy run of ``phalanx chaos`` on several hosts, which are network namespaces of this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from phalanx.cli.train_chaos import list_members, summarize
from phalanx.coordinator import Terms, read_events
from phalanx.errors import ConfigError
from phalanx.launch import worker
from phalanx.launch.chaos import Strike
from phalanx.launch.mishaps import AWAY
from phalanx.launch.network import Network, inside, network
from phalanx.launch.network_commands import host_address
from phalanx.launch.storm import Storm, Weather
from phalanx.train.log import StepCounter, read_steps
from phalanx.train.rundir import RunDir
from phalanx.transport import Deadline, make_token

_STALL_S = 3.0
_PORT = 7000  # of the first host, on which nothing else runs
_LOOK_S = 0.1
_END_S = 20.0  # for workers of other hosts, after the end of the run


def train_on_hosts(
    where: Path, options: Sequence[str], strikes: list[Strike], hosts: int, workers: int, *, is_shared: bool
) -> RunDir:
    """Run ``phalanx train`` on so many hosts, let the strikes happen to it, and return it when it has come to its end.

    The coordinator, the run directory and an even share of the ``workers`` are on the first host.
    """
    weather, run, local = Weather(strikes), RunDir(where), f"{workers // hosts}"
    away_s = AWAY * max(_STALL_S, Terms().patience_s)  # so that a host which is cut off is given up
    with ExitStack() as stack:
        made = stack.enter_context(network([None] * hosts))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="phalanx-hosts-")))
        (folder / "token").touch(0o600)
        (folder / "token").write_text(make_token(), encoding="ascii")
        stage = stack.enter_context(_Stage(made, run, folder, AWAY * _STALL_S))
        stage.train([*options, "--run-dir", str(where), "--local", local, "--first", f"{workers}", "--json"])
        for host in range(1, hosts):
            stage.join(host, local)
        with Storm(weather, stage, StepCounter(run.steps).count, away_s=away_s, is_shared=is_shared):
            stage.wait()
    run.write_chaos(summarize(weather, list(read_events(run.events)), read_steps(run.steps)))
    return run


class _Stage:
    """The hosts, and the commands at work on them. Commands left at the end of the block are ended.

    Workers that shall hang do so for ``hang_s``.
    """

    def __init__(self, made: Network, run: RunDir, folder: Path, hang_s: float) -> None:
        self._network = made
        self._run = run
        self._folder = folder
        self._hang_s = hang_s
        self._commands: list[_HostCommand] = []
        self._wanted: list[int] = []  # hosts on which another worker shall join
        self._numbers = {Path(namespace).stat().st_ino: number for number, namespace in enumerate(made.hosts)}
        self._events_bytes = 0
        self._members: list[int] = []

    def train(self, options: Sequence[str]) -> None:
        """Start ``phalanx train`` on the first host."""
        mishaps = ["--chaos", "kill=0", "--stall", f"{_STALL_S}"]  # the workers let them happen, and others cause them
        self._start(0, ["train", *options, "--bind", self._address, *mishaps])

    def join(self, host: int, workers: str) -> None:
        """Start ``phalanx join`` on another host."""
        self._start(host, ["join", self._address, "-n", workers, "--mishaps", f"{self._hang_s}"])

    def wait(self) -> None:
        """Wait until the run is over. Raise ConfigError if a command fails."""
        first = self._commands[0]
        while not first.has_ended(within_s=_LOOK_S):
            while self._wanted:
                self.join(self._wanted.pop(0), "1")
            for command in self._commands[1:]:
                if command.has_ended(within_s=0.0):
                    command.check()
        first.check()
        if not self._run.result.exists():
            raise ConfigError(f"the run in {self._run.path} has no result, although its command ended with 0")

    @property
    def hosts(self) -> list[list[int]]:
        """The processes of the members of the present epoch, by host."""
        with suppress(OSError, ConfigError):  # there are no events yet, or one is being written
            size_bytes = self._run.events.stat().st_size
            if size_bytes != self._events_bytes:
                self._members, self._events_bytes = list_members(list(read_events(self._run.events))), size_bytes
        found: list[list[int]] = [[] for _ in self._numbers]
        for pid in self._members:
            with suppress(OSError, KeyError):  # it has ended
                found[self._numbers[Path(f"/proc/{pid}/ns/net").stat().st_ino]].append(pid)
        return found

    @property
    def coordinator(self) -> int | None:
        """The process of the coordinator, on the first host."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, KeyError):  # it has ended
                is_coordinator = b"\0coordinator\0--bind\0" in (process / "cmdline").read_bytes()
                if is_coordinator and self._numbers[(process / "ns/net").stat().st_ino] == 0:
                    return int(process.name)
        return None

    def start_another(self, host: int) -> None:
        """Start one more worker on a host, as soon as ``wait`` comes to it. Any thread may call this."""
        self._wanted.append(host)

    def set_link(self, host: int, *, is_up: bool) -> None:
        """Cut a host off from all others, or connect it again."""
        self._network.set_link(host, is_up=is_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        deadline = Deadline.after(0.0 if kind else _END_S)
        for command in self._commands:
            command.has_ended(within_s=deadline.remaining_s())
        for command in self._commands:
            command.end()

    @property
    def _address(self) -> str:
        return f"{host_address(0)}:{_PORT}"

    def _start(self, host: int, words: Sequence[str]) -> None:
        log = self._folder / f"{len(self._commands)}.log"
        with inside(self._network.hosts[host]):
            self._commands.append(_HostCommand([*words, "--token-file", str(self._folder / "token")], log))


class _HostCommand:
    """A command of ``phalanx`` at work, which dies with the thread that has started it.

    What it says goes to the file ``log``.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._words = words
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), "-m", "phalanx", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,  # Ctrl-C ends it by way of this process
            )

    def has_ended(self, within_s: float) -> bool:
        """Wait for its end for some time, and return whether it has come."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self._process.returncode is not None

    def check(self) -> None:
        """Raise ConfigError if it has failed."""
        if self._process.returncode:
            said = self._log.read_text(encoding="utf-8", errors="replace")
            words = f"this command ended with {self._process.returncode}: phalanx {' '.join(self._words)}"
            raise ConfigError(f"{words}\n{said}")

    def end(self) -> None:
        """End it at once, if it still runs: its workers end with it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
