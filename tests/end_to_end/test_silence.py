"""A rank that says nothing is not given up: it must be dead, cut off, or do nothing while others wait for it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from coordinating import running, write_token
from launching import PHALANX, finish, started, write_script

HOLD_THE_INTERPRETER = """
import ctypes
seconds = int(sys.argv[1])
with phalanx.connect() as group:
    group.barrier()
    if group.rank == 1:
        ctypes.PyDLL(None).usleep(seconds * 1_000_000)  # called without giving up the interpreter
    print(group.all_reduce(np.ones(4 << 20))[0])
"""

DO_SOMETHING_ELSE = """
import time
def work():
    until = time.monotonic() + 6
    while time.monotonic() < until:
        pass
what = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "asleep": signal.pause,
    "at work": work,
}[sys.argv[1]]
with phalanx.connect() as group:
    group.barrier()
    if group.rank == 1:
        what()
    group.barrier()
    print("together")
"""


@pytest.mark.slow
@pytest.mark.parametrize("over", ["auto", "tcp"])
def test_a_rank_that_holds_its_interpreter_longer_than_the_patience_survives(tmp_path, over):
    script = write_script(tmp_path, HOLD_THE_INTERPRETER)

    ended = finish([*PHALANX, "run", "--patience", 0.5, "--over", over, script, 3])

    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == ["[rank 0] 2.0", "[rank 1] 2.0"]


@pytest.mark.slow
def test_a_rank_that_holds_its_interpreter_for_12_s_survives_by_default(tmp_path):
    script = write_script(tmp_path, HOLD_THE_INTERPRETER)

    ended = finish([*PHALANX, "run", "--over", "tcp", script, 12])

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("state", "over"),
    [
        ("stopped", "auto"),
        pytest.param("stopped", "tcp", marks=pytest.mark.slow),
        pytest.param("asleep", "auto", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_does_nothing_is_named_after_the_stall_time(tmp_path, state, over):
    script = write_script(tmp_path, DO_SOMETHING_ELSE)

    ended = finish([*PHALANX, "run", "-n", 3, "--stall", 2, "--over", over, script, state])

    assert ended.returncode != 0
    assert "together" not in ended.stdout
    words = "DeadlineExceeded: rank 0 has waited"
    assert words in ended.stderr or words.replace("rank 0", "rank 2") in ended.stderr
    assert " s for rank 1, which does nothing: it is stopped, or stuck" in ended.stderr


@pytest.mark.slow
def test_a_rank_that_works_longer_than_the_stall_time_is_waited_for(tmp_path):
    script = write_script(tmp_path, DO_SOMETHING_ELSE)

    ended = finish([*PHALANX, "run", script, "at work"], PHALANX_STALL="1")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("together") == 2


def test_stopping_the_launcher_for_longer_than_the_patience_kills_nobody(tmp_path):
    script = write_script(
        tmp_path,
        """
        import pathlib, time
        with phalanx.connect(lanes=2) as group:
            print("here", flush=True)
            until = time.monotonic() + 4
            while group.all_reduce(np.array([time.monotonic() < until]), op="min")[0]:
                pass
            pathlib.Path(sys.argv[1] + str(group.rank)).touch()
            for step in range(5):
                group.commit(0.5, b"same")
        """,
    )
    ends = [tmp_path / f"end{rank}" for rank in range(2)]
    options = ["--patience", "0.5", "--stall", "1"]

    with started([*PHALANX, "run", *options, script, tmp_path / "end"]) as launcher:
        launcher.stdout.readline()
        launcher.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 40
        while not all(end.exists() for end in ends):
            assert time.monotonic() < deadline
        launcher.send_signal(signal.SIGCONT)
        _, errors = launcher.communicate(timeout=40)

    assert (launcher.returncode, errors) == (0, "")


def test_the_death_of_a_rank_that_runs_the_coordinator_is_noticed_though_its_children_live(tmp_path):
    script = write_script(
        tmp_path,
        """
        import multiprocessing, time
        with phalanx.connect() as group:
            group.barrier()
            if group.rank == 0:
                here, there = os.pipe()
                def load():
                    os.write(there, b"!")
                    signal.pause()
                loaders = [multiprocessing.get_context("fork").Process(target=load) for _ in range(2)]
                for loader in loaders:
                    loader.start()
                    os.read(here, 1)
                print(time.monotonic(), *(loader.pid for loader in loaders), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                group.barrier()
            except phalanx.PeerLost as error:
                print(time.monotonic(), error.peer)
        """,
    )
    port = 20_000 + os.getpid() % 10_000
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "2"}

    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(started([sys.executable, script], RANK=str(rank), **where)) for rank in range(2)
        )
        died_at, *loaders = first.stdout.readline().split()
        noticed_at, peer = second.stdout.readline().split()
        for loader in loaders:
            os.kill(int(loader), signal.SIGKILL)

    assert peer == "0"
    assert float(noticed_at) - float(died_at) < 1.0


# A network that is cut


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Two network namespaces with a cable between them: names, addresses, and the name of the second one's end."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    number = os.getpid()
    names, ends = [f"phalanx-{number}-{side}" for side in "ab"], [f"px{number}{side}" for side in "ab"]
    addresses = [f"10.213.{number % 256}.{1 + side}" for side in range(2)]
    with contextlib.ExitStack() as undo:
        for name in names:
            ip("netns", "add", name)
            undo.callback(ip, "netns", "delete", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names, addresses, ends[1]


@pytest.mark.slow
@pytest.mark.parametrize("activity", ["idle", "busy"])
def test_a_cut_network_is_found_within_the_patience(tmp_path, hosts, activity):
    names, addresses, end = hosts
    script = write_script(
        tmp_path,
        """
        import time
        with phalanx.connect() as group:
            array = np.ones(1 << 20)
            group.all_reduce(array)
            print("here", flush=True)
            try:
                while sys.argv[1] == "busy":
                    group.all_reduce(array)
                if group.rank == 1:
                    signal.pause()
                group.barrier()
            except phalanx.PeerLost as error:
                print("lost", error.peer, time.monotonic(), flush=True)
        """,
    )
    token = write_token(tmp_path)
    on_host = [["ip", "netns", "exec", name] for name in names]
    with contextlib.ExitStack() as stack:
        coordinator = [*on_host[0], *PHALANX, "coordinator", "--bind", f"{addresses[0]}:0", "--workers", 2, *token]
        serving = stack.enter_context(running(coordinator))
        address = serving.wait_for("listening on ")[0].split()[3]
        joining = [*PHALANX, "join", address, "--over", "tcp", *token, "--", script, activity]
        near = stack.enter_context(running([*on_host[0], *joining]))
        serving.wait_for("has come")  # so it is rank 0
        far = stack.enter_context(running([*on_host[1], *joining]))
        near.wait_for("here")
        far.wait_for("here")

        ip("-n", names[1], "link", "set", end, "down")
        cut_at = time.monotonic()
        lost = near.wait_for("lost")[0].split()

    assert lost[-2] == "1"
    assert float(lost[-1]) - cut_at < 5.0
