"""A rank that says nothing is not given up: it must be dead, cut off, or do nothing while others wait for it."""

import contextlib
import os
import signal
import socket
import sys
import time

import pytest
from coordinating import running, serving, write_token
from launching import PHALANX, finish, started, write_script
from namespaces import ip
from training import wait_until, workers_of, write_config

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


@pytest.mark.slow
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


def under_torchrun():
    """The environment of each of two ranks, as torchrun sets it, with a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), **common} for rank in range(2)]


NAMED = "which does nothing: it is stopped, or stuck; look at that process, or allow more than 1.5 s with --stall"


@pytest.mark.slow
@pytest.mark.parametrize(("option", "extra"), [(["--stall", 1.5], {}), ([], {"PHALANX_STALL": "1.5"})])
def test_the_stall_time_can_be_set_for_run(tmp_path, option, extra):
    script = write_script(tmp_path, DO_SOMETHING_ELSE)

    ended = finish([*PHALANX, "run", *option, script, "asleep"], **extra)

    assert NAMED in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("option", "theirs"), [(["--stall", 1.5], []), ([], ["--stall", 1.5])])
def test_the_stall_time_can_be_set_for_coordinator_and_join(tmp_path, option, theirs):
    script = write_script(tmp_path, DO_SOMETHING_ELSE)

    with serving("--workers", 2, *option) as (_, address):
        ended = finish([*PHALANX, "join", address, "-n", 2, *theirs, "--", script, "asleep"])

    assert NAMED in ended.stderr


@pytest.mark.slow
def test_the_stall_time_can_be_set_for_train(tmp_path):
    options = ["--workers", 2, "--steps", 100_000, "--stall", 1.5, "--run-dir", tmp_path / "run"]

    with running([*PHALANX, "train", write_config(tmp_path), *options]) as training:
        training.wait_for("step ")
        os.kill(workers_of(training)[1], signal.SIGSTOP)
        events = tmp_path / "run" / "events.jsonl"
        wait_until(training.process, lambda: NAMED in events.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_stall_time_can_be_set_by_the_environment_under_torchrun(tmp_path):
    script = write_script(tmp_path, DO_SOMETHING_ELSE)

    with contextlib.ExitStack() as stack:
        waiting, _ = (
            stack.enter_context(running([sys.executable, script, "asleep"], PHALANX_STALL="1.5", **environ))
            for environ in under_torchrun()
        )
        waiting.wait_for(NAMED)


@pytest.mark.slow
def test_a_rank_that_works_longer_than_the_stall_time_is_waited_for(tmp_path):
    script = write_script(tmp_path, DO_SOMETHING_ELSE)

    ended = finish([*PHALANX, "run", script, "at work"], PHALANX_STALL="1")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("together") == 2


@pytest.mark.slow
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
        _, errors = launcher.communicate(timeout=200)

    assert (launcher.returncode, errors) == (0, "")


@pytest.mark.slow  # it imports torch
@pytest.mark.parametrize("victim", [0, 1], ids=["runs-the-coordinator", "does-not"])
def test_the_death_of_a_rank_is_noticed_though_workers_of_its_data_loader_live(tmp_path, victim):
    """Patience and stall time are so long that only the kernel, by closing the connections, can say that it died."""
    script = write_script(
        tmp_path,
        """
        victim = int(sys.argv[1])
        here, there = os.pipe()
        with phalanx.connect() as group:
            group.barrier()
            if group.rank == victim:
                from torch.utils.data import DataLoader
                class Samples(list):
                    def __getitem__(self, index):
                        os.write(there, b"!")
                        while True:
                            signal.pause()
                loading = iter(DataLoader(Samples([0, 1]), num_workers=2, multiprocessing_context="fork"))
                for worker in loading._workers:
                    os.read(here, 1)
                print("loaders", *(worker.pid for worker in loading._workers), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                group.barrier()
            except phalanx.PeerLost as error:
                print("lost", error.peer, flush=True)
        """,
    )
    times = {"PHALANX_PATIENCE": "3600", "PHALANX_STALL": "1000000"}

    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(running([sys.executable, script, victim], **times, **environ))
            for environ in under_torchrun()
        ]
        _, *loaders = ranks[victim].wait_for("loaders")[0].split()
        try:
            lost = ranks[1 - victim].wait_for("lost")
        finally:
            for loader in loaders:  # they live until now: signalling a dead process fails
                os.kill(int(loader), signal.SIGKILL)

    assert lost == [f"lost {victim}\n"]


# A network that is cut


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "activity"), [("off", "idle"), ("off", "held"), ("from each other", "busy"), ("from each other", "held")]
)
def test_a_cut_network_is_found_by_the_patience_whatever_ranks_do(tmp_path, hosts, cut, activity):
    """The stall time is so long that only the patience can be the reason; so is the deadline of the calls."""
    names, addresses = hosts
    script = write_script(
        tmp_path,
        """
        import ctypes
        with phalanx.connect() as group:
            array = np.ones(1 << 20)
            group.all_reduce(array)
            print("here", flush=True)
            try:
                while sys.argv[1] == "busy":
                    group.all_reduce(array)
                if group.rank == 1 and sys.argv[1] == "held":
                    ctypes.PyDLL(None).usleep(1_000_000_000)
                if group.rank == 1:
                    signal.pause()
                group.barrier()
            except phalanx.PeerLost as error:
                print("lost", error.peer, flush=True)
        """,
    )
    token = write_token(tmp_path)
    at, on_first, on_second = (["ip", "netns", "exec", name] for name in names)
    with contextlib.ExitStack() as stack:
        times = ["--patience", 2, "--stall", 1_000_000]
        coordinator = [*at, *PHALANX, "coordinator", "--bind", f"{addresses[0]}:0", "--workers", 2, *times, *token]
        coordinating = stack.enter_context(running(coordinator))
        address = coordinating.wait_for("listening on ")[0].split()[3]
        joining = [*PHALANX, "join", address, "--over", "tcp", *token, "--", script, activity]
        first = stack.enter_context(running([*on_first, *joining]))
        coordinating.wait_for("has come")  # so it is rank 0
        second = stack.enter_context(running([*on_second, *joining]))
        first.wait_for("here")
        second.wait_for("here")

        if cut == "off":
            ip("-n", names[2], "link", "set", "cable", "down")
        else:
            ip("-n", names[1], "route", "add", "blackhole", addresses[2])
            ip("-n", names[2], "route", "add", "blackhole", addresses[1])
        lost = first.wait_for("lost")[0].split()

    assert lost[-1] == "1" or (cut == "from each other" and activity == "busy")  # each finds that the other is gone
