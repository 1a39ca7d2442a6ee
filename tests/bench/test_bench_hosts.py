"""``phalanx bench hosts``: the network that it builds, what its figures mean, and that nothing of it is left."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forking import fork, wait
from phalanx.bench.hosts.plan import (
    HostsTimes,
    HostSystem,
    cells,
    check_size,
    line_seconds,
    parse_rate,
    rows,
)
from phalanx.errors import ConfigError
from phalanx.launch.network import inside, lacking, network
from phalanx.launch.network_commands import host_commands, port_commands

COMMAND = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "hosts"]
DEADLINE_S = 50.0

needs_hosts = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))


@pytest.mark.parametrize(("text", "rate_bits"), [("1gbit", 10**9), ("250mbit", 25 * 10**7), ("8kbit", 8000)])
def test_a_rate_is_read_as_bits_per_second(text, rate_bits):
    assert parse_rate(text) == rate_bits


@pytest.mark.parametrize("text", ["", "1", "gbit", "0gbit", "1.5gbit", "1 gbit", "1gbps", "-1gbit"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ConfigError, match="--rate 1gbit"):
        parse_rate(text)


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 1), (65, 1), (2, 0)])
def test_sizes_that_cannot_be_measured_are_refused(hosts, ranks):
    with pytest.raises(ConfigError):
        check_size(hosts, ranks)


def test_the_line_carries_what_a_host_sends_in_an_all_reduce():
    assert line_seconds(1000, hosts=2, rate_bits=8000) == pytest.approx(1.0)
    assert line_seconds(16 << 20, hosts=4, rate_bits=10**9) == pytest.approx(0.2013, abs=1e-4)


def test_both_ends_of_a_line_are_limited():
    ends = [port_commands(3, "/proc/1/fd/9", 10**9)[-1], host_commands(3, 10**9)[-1]]

    assert [end[:5] for end in ends] == [["tc", "qdisc", "add", "dev", name] for name in ("port3", "eth0")]
    assert all(end[5:9] == ["root", "tbf", "rate", "1000000000bit"] for end in ends)


def test_the_setting_of_this_machine_for_congestion_does_not_reach_the_hosts():
    assert ["ip", "route", "change", "10.99.0.0/24", "dev", "eth0", "congctl", "cubic"] in host_commands(3, 10**9)


def test_steps_are_compared_with_ddp_and_all_reduces_with_the_all_reduce_of_gloo():
    seconds = {"engine": [9.0, 0.5, 0.25], "ddp-gloo": [1.0], "all-reduce": [4.0], "all-reduce-gloo": [2.0]}

    found = rows(HostsTimes({HostSystem(name): each for name, each in seconds.items()}), 4, 2, 10**9)

    assert [row.system for row in found] == list(seconds)
    assert [row.vs_gloo for row in found] == [2.0, 1.0, 0.5, 1.0]
    assert [row.line_s for row in found] == pytest.approx([0.2013, 0.2013, 0.8053, 0.8053], abs=1e-4)
    assert cells(found[0]) == ("engine", "500 ms", "2.48x", "2.00x")


def test_without_gloo_there_is_nothing_to_compare_with():
    (row,) = rows(HostsTimes({HostSystem.ENGINE: [1.0]}), 2, 1, 10**9)

    assert (row.hosts, row.ranks, row.bytes, row.vs_gloo) == (2, 1, 16 << 20, None)


def test_where_no_hosts_can_be_made_the_command_says_what_it_needs():
    bare = {**os.environ, "PATH": ""}  # so that even root on Linux finds no ip and no tc

    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=bare)

    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot make hosts here" in done.stderr


@needs_hosts
def test_a_user_who_is_not_root_is_told_to_be():
    def ask():
        os.seteuid(65534)
        assert "need root" in str(lacking())

    assert wait(fork(ask)) == 0


@needs_hosts
def test_hosts_are_apart_and_gone_when_the_block_ends():
    with network([10**9, 10**9]) as made:
        seen = []
        for namespace in (made.switch, *made.hosts):
            with inside(namespace):
                seen.append(interfaces())
        numbers = {Path(namespace).stat().st_ino for namespace in made.hosts}

        assert seen == [{"lo", "switch", "port0", "port1"}, {"lo", "eth0"}, {"lo", "eth0"}]
        assert len(numbers) == 2
        assert users(numbers) == {os.getpid()}

    assert os.getpid() not in users(numbers)  # others may get the same number for theirs by now
    assert not interfaces() & {"switch", "port0", "port1"}


@needs_hosts
@pytest.mark.slow
def test_every_system_is_measured_between_hosts():
    asked = ["--hosts", "2", "--ranks", "1", "--rate", "10gbit", "--rounds", "1", "--json"]

    done = subprocess.run([*COMMAND, *asked], capture_output=True, text=True, timeout=DEADLINE_S, check=True)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["system"] for row in found] == [system.value for system in HostSystem]
    assert all((row["hosts"], row["ranks"]) == (2, 1) for row in found)
    assert all(row["median_s"] > row["line_s"] > 0 for row in found if row["system"] != "data-parallel-bf16")
    assert all(row["vs_gloo"] > 0 for row in found)


@needs_hosts
@pytest.mark.slow
@pytest.mark.timeout(3 * DEADLINE_S)  # it waits three times
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_command_is_killed(number):
    asked = ["--hosts", "2", "--ranks", "1", "--systems", "all-reduce", "--rounds", "10000"]
    with running([*COMMAND, *asked]) as driver:
        workers = wait_for_workers(driver, 2)
        everybody = users({namespace_of(worker) for worker in workers})
        ends = [os.pidfd_open(worker) for worker in workers]

        driver.send_signal(number)
        driver.wait(DEADLINE_S)

        for end in ends:
            assert select.select([end], [], [], DEADLINE_S)[0], "a worker lives on"
            os.close(end)
        assert everybody == {driver.pid, *workers}  # they were the only ones that kept the hosts alive


@contextmanager
def running(command):
    """A process that is killed when the block ends, also if the test has failed."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_workers(driver, count):
    """Return the processes of the workers, when each is in a network namespace of its own."""
    by = time.monotonic() + DEADLINE_S
    while time.monotonic() < by:
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the command ended by itself with {driver.wait(0.01)}")
        children = map(int, Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split())
        inside = [child for child in children if namespace_of(child) not in (None, namespace_of(os.getpid()))]
        if len(inside) == count:
            return inside
    pytest.fail("no worker has moved to its host")


def namespace_of(pid):
    """Return the number of the network namespace of a process; None if the process has ended."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def users(numbers):
    """Return the processes that keep network namespaces alive: by living there, or by an open file."""
    found = set()
    for number in numbers:
        for file in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):  # the file or its process may be gone by now
                if str(file.readlink()) == f"net:[{number}]":
                    found.add(int(file.parts[2]))
        found |= {int(each.name) for each in Path("/proc").glob("[0-9]*") if namespace_of(each.name) == number}
    return found


def interfaces():
    """Return the names of the network interfaces of this thread's namespace."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return {line.split(":")[0].strip() for line in lines}
