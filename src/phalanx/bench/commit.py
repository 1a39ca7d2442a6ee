"""Measures how long a commit takes, with few workers and with many."""

import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from phalanx.coordinator import CoordinatorClient
from phalanx.errors import ConfigError, PhalanxError
from phalanx.launch import worker
from phalanx.transport import Deadline, parse_address
from phalanx.wire import Address, Commit, Hello

_LIMIT_S = 120.0
_FILES_EACH = 8  # descriptors of one worker's client


class CommitRow(msgspec.Struct, frozen=True):
    """Seconds from the moment the last worker is done until the last worker hears of the commit."""

    workers: int
    steps: int
    journal: bool
    median_s: float
    worst_s: float
    per_worker_s: float


def measure_commits(workers: int, steps: int, *, with_journal: bool) -> CommitRow:
    """Take empty steps with ``workers`` clients of one coordinator, which is a process of its own, over TCP."""
    _allow_files(workers * _FILES_EACH)
    done_at = [[0.0] * steps for _ in range(workers)]
    heard_at = [[0.0] * steps for _ in range(workers)]
    failures: list[PhalanxError] = []
    together = threading.Barrier(workers)

    def work(number: int, coordinator: Address) -> None:
        try:
            _take_steps(number, coordinator, together, done_at[number], heard_at[number])
        except PhalanxError as error:
            failures.append(error)
            together.abort()
        except threading.BrokenBarrierError:
            pass  # another worker has failed and reports it

    with _coordinator(workers, with_journal=with_journal) as address:
        threads = [threading.Thread(target=work, args=(number, address)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    seconds = [
        max(heard) - max(done)
        for done, heard in zip(zip(*done_at, strict=True), zip(*heard_at, strict=True), strict=True)
    ]
    median = statistics.median(seconds)
    return CommitRow(workers, steps, with_journal, median, max(seconds), median / workers)


def _take_steps(
    number: int, coordinator: Address, together: threading.Barrier, done_at: list[float], heard_at: list[float]
) -> None:
    deadline = Deadline.after(_LIMIT_S)
    hello = Hello("here", (), os.getpid(), None, None, "", name=f"worker {number}", lanes=1)
    with closing(CoordinatorClient([coordinator], deadline)) as client:
        _, epoch = client.join(hello, deadline)
        for step in range(len(done_at)):
            together.wait(_LIMIT_S)  # otherwise the first workers would already send for the next step
            client.done(epoch, 0.0, b"")
            done_at[step] = time.perf_counter()
            word = client.wait_for_word(deadline)
            heard_at[step] = time.perf_counter()
            assert isinstance(word, Commit), "nobody came or went"
        client.leave()
        epoch.close()


@contextmanager
def _coordinator(workers: int, *, with_journal: bool) -> Iterator[Address]:
    """Start a coordinator in a process of its own, and yield its address."""
    command = [sys.executable, "-I", "-S", worker.__file__, str(os.getpid())]  # so that it ends with this process
    command += ["-c", "from phalanx.cli import main; main()", "coordinator", "--bind", "127.0.0.1:0"]
    command += ["--workers", str(workers), "--patience", "60"]
    with TemporaryDirectory() as folder:
        if with_journal:
            command += ["--journal", str(Path(folder) / "journal")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603 - ours
        with process:
            try:
                assert process.stdout
                line = process.stdout.readline().split()
                if len(line) < 4:
                    raise ConfigError("the coordinator did not start: run phalanx coordinator to see why")
                yield parse_address(line[3])
            finally:
                process.kill()


def _allow_files(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + 256
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ConfigError(f"so many workers need {wanted} open files, and {hard} are allowed: raise it with ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
