"""``phalanx doctor`` on machines that really lack something, and between hosts that really are cut off."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest
from launching import PHALANX, environ, finish
from namespaces import ip

from phalanx.coordinator import Coordinator, Terms
from phalanx.transport import Credentials, format_address, make_token

pytestmark = pytest.mark.slow  # real processes, all of them

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from phalanx.cli import main; main()"  # it takes seconds
WITH_ANOTHER_CLOCK = "import time; real = time.time; time.time = lambda: real() + 60; " + WITHOUT_TORCH
OF_ANOTHER_BUILD = "import torch; torch.__version__ = '2.12.0+cu126'; from phalanx.cli import main; main()"
NEEDS_ROOT = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="mounting and namespaces need root and unshare"
)


def examine(*arguments, program=WITHOUT_TORCH, within=(), **extra):
    """Run the doctor, perhaps within another command: its exit status, and its findings about each subject."""
    ended = finish([*within, sys.executable, "-c", program, "doctor", *arguments, "--json"], **extra)
    assert ended.stdout, ended.stderr
    return ended.returncode, read(ended.stdout)


def read(printed):
    found = {}
    for finding in json.loads(printed)["findings"]:
        found.setdefault(finding["about"], []).append((finding["level"], f"{finding['found']}: {finding['advice']}"))
    return found


def problems(found):
    return {about: words for about, all_of_it in found.items() for level, words in all_of_it if level == "problem"}


def test_a_newcomer_reads_one_line_for_each_finding(tmp_path):
    ended = finish([sys.executable, "-c", WITHOUT_TORCH, "doctor", "--run-dir", tmp_path / "runs"])

    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stdout
    assert {line.split()[0] for line in lines[:-1]} <= {"good", "warning"}
    assert [line for line in lines if line.startswith("good    CPUs          ")]
    assert list(tmp_path.iterdir()) == []


def test_too_few_descriptors_are_found():
    status, found = examine(within=["bash", "-c", 'ulimit -Sn 64; exec "$@"', "bash"])

    assert status == 1
    assert list(problems(found)) == ["open files"]
    assert "may have 64 files open" in problems(found)["open files"]
    assert "ulimit -n 4096" in problems(found)["open files"]


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("prepare", "about", "words"),
    [
        ("while mountpoint -q /dev/shm; do umount -l /dev/shm; done", "shm", "nothing is mounted there"),
        # A new one: to remount the old one would change it for the whole machine, whatever the namespace.
        ("mount -t tmpfs -o size=1m none /dev/shm", "shm", "1.0 MiB free"),
        ("mount -t tmpfs none /proc", "shared memory", "or no /proc"),
    ],
)
def test_a_lack_of_shared_memory_is_found(prepare, about, words):
    within = ["unshare", "--mount", "bash", "-c", f'{prepare} && exec "$@"', "bash"]

    status, found = examine(within=within)

    assert status == 1
    assert words in problems(found)[about]


class TestCoordinator:
    """One that runs in this process, with a token."""

    @pytest.fixture
    def token(self):
        return make_token()

    @pytest.fixture
    def address(self, token):
        with Coordinator(terms=Terms.exactly(2), credentials=Credentials(token.encode())) as coordinator:
            yield format_address(coordinator.address)

    def test_the_way_to_it_is_good(self, address, token):
        status, found = examine(address, PHALANX_TOKEN=token)

        assert status == 0, problems(found)
        assert ("good", "its run: waiting for workers: 0 here, at least 2 needed: ") in found["coordinator"]

    def test_a_wrong_token_is_found(self, address):
        status, found = examine(address, PHALANX_TOKEN=make_token())

        assert status == 1
        assert list(problems(found)) == ["token"]
        assert "the token is wrong" in problems(found)["token"]

    def test_a_clock_that_is_off_by_a_minute_is_found(self, address, token):
        status, found = examine(address, program=WITH_ANOTHER_CLOCK, PHALANX_TOKEN=token)

        assert status == 1
        assert list(problems(found)) == ["clock"]
        assert "is 60.0 s ahead of the coordinator's" in problems(found)["clock"]

    def test_a_port_on_which_nobody_listens_is_found(self, token):
        with Coordinator() as closed:
            address = format_address(closed.address)

        status, found = examine(address, "--timeout", 0.3, PHALANX_TOKEN=token)

        assert status == 1
        assert f"{address}: Connection refused" in problems(found)["coordinator"]


@NEEDS_ROOT
def test_three_machines_find_a_blocked_port_and_another_build_of_torch(hosts):
    names, addresses = hosts
    # As a firewall would that lets the coordinator's port through, and nothing else: c never answers b.
    ip("-n", names[2], "rule", "add", "to", addresses[1], "ipproto", "tcp", "sport", "1024-65534", "blackhole")
    token, where = make_token(), f"{addresses[0]}:7000"
    programs = [PHALANX[-1], PHALANX[-1], OF_ANOTHER_BUILD]

    with ExitStack() as stack:
        doctors = [
            stack.enter_context(start(name, program, where, token))
            for name, program in zip(names, programs, strict=True)
        ]
        printed = [process.communicate(timeout=200) for process in doctors]

    assert [process.returncode for process in doctors] == [1, 1, 1], printed
    for out, _ in printed:
        found = read(out)
        labels = {place: f"({address})" for place, address in zip("abc", addresses, strict=True)}
        assert labels["c"] in found["torch"][-1][1].rpartition("2.12.0+cu126")[2]
        blocked = [words for level, words in found["connection"] if level == "problem"]
        fast = [words for level, words in found["connection"] if level == "good"]
        assert len(blocked) == 2, found["connection"]
        assert f"{labels['b']} cannot connect to" in "".join(blocked)
        assert f"{labels['c']} cannot connect to" in "".join(blocked)
        assert all("let " in words and " accept TCP connections from " in words for words in blocked)
        assert len(fast) == 2
        assert all(labels["a"] in words and "bit/s there" in words and "round trip" in words for words in fast)


def start(namespace, program, where, token):
    """A doctor on one of three machines."""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", program, "doctor", where, "--machines", "3"]
    return subprocess.Popen(
        [*command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(PHALANX_TOKEN=token),
    )
