"""One rank of one system. It does the tasks that the driver sends, until the driver disconnects."""

import argparse
import functools
import socket
import time

import msgspec
import numpy as np

from phalanx.bench.all_reduce.plan import AllReduceSystem, Ready, Task, Times
from phalanx.bench.all_reduce.systems import Connected, Subject, join
from phalanx.transport import parse_address


def main() -> None:
    """Connect to the system that the command line names, and do the driver's tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", type=AllReduceSystem, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--driver", type=parse_address, required=True)
    parser.add_argument("--meeting", required=True)
    asked = parser.parse_args()
    with (
        join(asked.system, asked.rank, asked.ranks, asked.meeting) as member,
        socket.create_connection((asked.driver.host, asked.driver.port)) as driver,
    ):
        serve(member, asked.ranks, driver)


def serve(member: Connected, ranks: int, driver: socket.socket) -> None:
    """Answer every task with the times of this rank. Between tasks, wait without using the processor."""

    @functools.cache  # buffers are reused, because making them is not measured
    def checked(length: int) -> Subject:
        subject = member.prepare(length)
        check(subject, member, ranks)
        return subject

    driver.sendall(msgspec.json.encode(Ready(member.rank)) + b"\n")
    for line in driver.makefile("rb"):
        task = msgspec.json.decode(line, type=Task)
        times = Times(measure(checked(task.length), member, task))
        driver.sendall(msgspec.json.encode(times) + b"\n")


def check(subject: Subject, member: Connected, ranks: int) -> None:
    """Raise ``ArithmeticError`` unless the system adds up every element, and divides for a mean."""
    pattern = np.arange(len(subject.source)) % 1000
    subject.source[:] = pattern + member.rank
    member.barrier()

    subject.reduce()

    expected = np.float32(ranks * pattern + ranks * (ranks - 1) // 2)
    if not np.array_equal(subject.result, expected / np.float32(ranks) if subject.is_mean else expected):
        raise ArithmeticError(f"rank {member.rank} got a wrong sum of {len(pattern)} elements")


def measure(subject: Subject, member: Connected, task: Task) -> list[float]:
    """Return the seconds of each iteration after the warm-up.

    All ranks fill their buffers and wait for each other before the clock starts, so a late rank is not measured.
    """
    seconds = []
    for _ in range(task.warmup + task.iterations):
        subject.source.fill(member.rank + 1)
        member.barrier()
        began = time.perf_counter()
        subject.reduce()
        seconds.append(time.perf_counter() - began)
    return seconds[task.warmup :]


if __name__ == "__main__":
    main()
