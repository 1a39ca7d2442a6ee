"""Runs of ``phalanx train`` that workers of other machines join."""

import json
import os
import shutil
import signal
import socket
import sys
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
from coordinating import running, serving, write_token
from launching import PHALANX
from namespaces import ip
from training import LIMIT_S, bits_of, call, checkpoints_of, train, wait_until, workers_in, workers_of, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]  # every worker imports torch

LONG = ["--steps", 1_000_000]


def count_steps(run):
    return (run / "steps.jsonl").read_bytes().count(b"\n") if (run / "steps.jsonl").exists() else 0


def digest_of(run):
    return json.loads((run / "result.json").read_text(encoding="utf-8"))["digest"]


class Machines:
    """The commands of a run on several machines, and its directory."""

    def __init__(self, folder, stack):
        self.run = folder / "run"
        self.config = write_config(folder)
        self.token = write_token(folder)
        self._stack = stack

    def start(self, *options, bind="127.0.0.1:0", at=()):
        """``phalanx train``, and the address at which others can join."""
        command = [*at, *PHALANX, "train", self.config, "--run-dir", self.run, "--bind", bind, *self.token, *options]
        first = self._stack.enter_context(running(command))
        return first, first.wait_for("phalanx join ")[0].split()[3]

    def join(self, address, *options, at=()):
        return self._stack.enter_context(running([*at, *PHALANX, "join", address, *self.token, *options]))

    def wait_for_workers(self, first, number):
        """Return when the last step was taken by so many workers."""
        wait_until(first.process, lambda: count_steps(self.run) and workers_in(self.run)[-1] == number)


@pytest.fixture
def machines(tmp_path):
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


@pytest.mark.long
def test_a_run_outlives_the_workers_of_its_first_machine_bit_for_bit(tmp_path, machines, hosts):
    names, addresses = hosts
    on_first, on_second = (["ip", "netns", "exec", name] for name in names[:2])
    options = ["--workers", "2:3", "--local", 1, "--steps", 100]  # so it begins when the other machine has come
    first, address = machines.start(*options, bind=f"{addresses[0]}:0", at=on_first)
    second = machines.join(address, "-n", 2, at=on_second)
    machines.wait_for_workers(first, 3)

    for pid in workers_of(first):
        os.kill(pid, signal.SIGKILL)

    assert first.finish()[0] == 0
    assert second.finish()[::2] == (0, "")
    alone = train(machines.config, "--run-dir", tmp_path / "alone", "--steps", 100)
    assert digest_of(machines.run) == alone["digest"]
    assert bits_of(machines.run) == bits_of(tmp_path / "alone")
    numbers = workers_in(machines.run)
    assert numbers[numbers.index(3) + 1] == 2  # two went on without any that could keep the run


@pytest.mark.long
def test_a_machine_that_is_cut_off_comes_back_when_its_network_does_and_no_bit_changes(tmp_path, machines, hosts):
    names, addresses = hosts
    on_first, on_second = (["ip", "netns", "exec", name] for name in names[:2])
    options = ["--workers", "1:3", "--local", 1, "--first", 3, "--patience", 2, *LONG]
    first, address = machines.start(*options, bind=f"{addresses[0]}:0", at=on_first)
    second = machines.join(address, "-n", 2, at=on_second)
    machines.wait_for_workers(first, 3)
    cut_off = workers_of(second)

    ip("-n", names[0], "link", "set", "plug1", "down")
    machines.wait_for_workers(first, 1)
    ip("-n", names[0], "link", "set", "plug1", "up")
    machines.wait_for_workers(first, 3)

    assert workers_of(second) == cut_off  # no worker was lost
    first.process.send_signal(signal.SIGINT)
    assert first.finish()[0] != 0  # it was stopped early
    bits = bits_of(machines.run)
    with running([*PHALANX, "train", machines.config, "--run-dir", tmp_path / "alone", *LONG]) as alone:
        wait_until(alone.process, lambda: count_steps(tmp_path / "alone") >= len(bits))
    assert bits_of(tmp_path / "alone")[: len(bits)] == bits


def test_machines_share_the_optimizer_and_a_run_that_is_killed_resumes_bit_for_bit(tmp_path, machines, hosts):
    names, addresses = hosts
    on_first, on_second = (["ip", "netns", "exec", name] for name in names[:2])
    options = ["--zero", "--workers", "1:3", "--local", 1, "--first", 3, "--steps", 300]
    first, address = machines.start(*options, bind=f"{addresses[0]}:0", at=on_first)
    second = machines.join(address, "-n", 2, at=on_second)
    machines.wait_for_workers(first, 3)

    os.kill(workers_of(second)[0], signal.SIGKILL)
    second.wait_for("was killed by SIGKILL; the run goes on")
    wait_until(first.process, lambda: list(machines.run.glob("checkpoints/step-*/optimizer.2-of-3.safetensors")))
    first.process.kill()
    first.finish()

    resumed = train("--resume", machines.run)
    alone = train(machines.config, "--run-dir", tmp_path / "alone", "--steps", 300)
    assert resumed["digest"] == alone["digest"]
    assert bits_of(machines.run) == bits_of(tmp_path / "alone")


def test_a_machine_joins_again_when_the_state_was_lost_and_the_run_goes_on_from_a_checkpoint(tmp_path, machines):
    options = ["--zero", "--workers", "1:4", "--local", 2, "--first", 4, "--steps", 60]
    first, address = machines.start(*options, "--patience", 2, "--set", "run.checkpoint_every=10")
    second = machines.join(address, "-n", 2)
    machines.wait_for_workers(first, 4)
    wait_until(first.process, lambda: list(machines.run.glob("checkpoints/step-*/manifest.json")))

    for pid in [*workers_of(first), workers_of(second)[0]]:  # so both holders of some part of the optimizer are gone
        os.kill(pid, signal.SIGKILL)

    second.wait_for("the state of the run was lost with its workers: waiting")
    assert first.finish()[0] == 0
    assert second.finish()[0] == 0
    alone = train(machines.config, "--run-dir", tmp_path / "alone", "--steps", 60)
    assert digest_of(machines.run) == alone["digest"]
    assert bits_of(machines.run) == bits_of(tmp_path / "alone")


@pytest.mark.parametrize(
    ("sharing", "directory"), [("--zero", "elsewhere"), ("--no-zero", "run")], ids=["zero, a guest", "one directory"]
)
def test_workers_whose_coordinator_stays_away_save_what_they_hold(tmp_path, machines, sharing, directory):
    options = [sharing, *LONG, *machines.token]
    with serving("--workers", 2, "--patience", 0.5, *machines.token) as (coordinator, address), ExitStack() as stack:
        ends = []
        for where in (machines.run, tmp_path / directory):
            command = [*PHALANX, "train", machines.config, "--run-dir", where, "--coordinator", address, *options]
            ends.append(stack.enter_context(running(command)))
            coordinator.wait_for("has come", len(ends))  # so the first worker says where the run is
        machines.wait_for_workers(ends[0], 2)
        coordinator.process.kill()
        ended = [each.finish() for each in ends]

    assert [status for status, _, _ in ended] == [1, 1]
    saved = checkpoints_of(machines.run)[-1]
    assert saved == count_steps(machines.run)
    words = [errors.partition("then this worker; ")[2] for _, _, errors in ended]
    last = f"the last checkpoint is that of step {saved}, in {machines.run}"
    kept = f"rank 0 saves a checkpoint of it in {machines.run}"
    assert words[0].startswith(last)
    assert words[1].startswith(last if sharing == "--zero" else kept)


def test_workers_whose_first_machine_is_gone_say_where_the_last_checkpoint_is(machines):
    first, address = machines.start("--workers", "1:2", "--patience", 0.5, *LONG)
    second = machines.join(address)
    machines.wait_for_workers(first, 2)
    wait_until(first.process, lambda: checkpoints_of(machines.run))

    first.process.kill()

    status, _, errors = second.finish()
    assert status != 0
    assert f"in {machines.run} on {socket.gethostname()}" in errors


def test_a_machine_that_is_asked_to_leave_does_and_the_run_goes_on(machines):
    first, address = machines.start("--workers", "1:2", *LONG)
    second = machines.join(address)
    machines.wait_for_workers(first, 2)

    second.process.send_signal(signal.SIGTERM)

    assert second.finish()[::2] == (0, "")
    machines.wait_for_workers(first, 1)
    assert workers_in(machines.run) == [1, 2, 1]


def test_a_worker_of_another_machine_that_dies_is_replaced(machines):
    first, address = machines.start("--workers", "1:2", *LONG)
    second = machines.join(address)
    machines.wait_for_workers(first, 2)
    (victim,) = workers_of(second)

    os.kill(victim, signal.SIGKILL)

    second.wait_for("was killed by SIGKILL; the run goes on")
    machines.wait_for_workers(first, 1)
    machines.wait_for_workers(first, 2)
    assert workers_of(second) != [victim]


def test_other_data_is_refused_in_words_that_name_both_sides(tmp_path, machines):
    _, address = machines.start("--workers", "1:2", *LONG)
    other = tmp_path / "other.txt"
    other.write_text("x" * 5000, encoding="utf-8")

    status, _, errors = machines.join(address, "--data", other).finish()

    assert status == 2
    assert f"this machine cannot train in that run: the data is {other} with 5,000 bytes of uint8, digest " in errors
    assert f" here, and {tmp_path / 'text.txt'} with 20,000 bytes of uint8, digest " in errors


def test_a_machine_without_the_data_copies_it(tmp_path, machines, monkeypatch):
    first, address = machines.start("--workers", "1:2", *LONG)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    second = machines.join(address, "--data-from-peers")
    (line,) = second.wait_for("copied ")

    machines.wait_for_workers(first, 2)
    copy = elsewhere / line.split()[1]
    assert copy.read_bytes() == (tmp_path / "text.txt").read_bytes()


def test_data_that_is_not_there_is_asked_for(tmp_path, machines):
    _, address = machines.start("--workers", "1:2", *LONG)

    status, _, errors = machines.join(address, "--data", tmp_path / "none.txt").finish()

    assert status == 2
    assert "this machine lacks the data of the run" in errors
    assert "pass --data PATH" in errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bind", "0.0.0.0:0"], "0.0.0.0:0 is reachable from other machines, and without a token anybody could join"),
        (["--local", 2], "--local says how many of the workers start here, or first: pass --bind HOST:PORT too"),
        (
            ["--bind", "127.0.0.1:0", "--workers", "2:4", "--local", 5],
            "5 workers on this machine are not within 1 to 4",
        ),
        (["--bind", "127.0.0.1:0", "--local", 0], "0 workers on this machine are not within 1 to 1"),
        (["--bind", "127.0.0.1:0", "--workers", "4:2"], "run.min_workers 4 is more than run.workers 2"),
        (["--bind", "127.0.0.1:0", "--workers", "2:4", "--first", 5], "a run of 2 to 4 workers cannot begin with 5"),
        (["--bind", "127.0.0.1:0", "--transport", "star"], "cannot use --transport star: pass auto or tcp"),
        (["--coordinator", "127.0.0.1:1"], "--coordinator needs --run-dir"),
        (["--coordinator", "127.0.0.1:1", "--bind", "127.0.0.1:0"], "--bind makes no sense with --coordinator"),
        (["--coordinator", "127.0.0.1:1", "--workers", "2"], "--workers makes no sense with --coordinator"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(tmp_path, options, words):
    ended = call("train", write_config(tmp_path), *options, cwd=tmp_path)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert not (tmp_path / "runs").exists()


LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_of_another_launcher_train_in_the_run_of_a_coordinator(tmp_path, machines, launcher):
    if not (find_spec("torch") if launcher == "torchrun" else shutil.which(launcher)):
        pytest.skip(f"there is no {launcher}")
    with serving("--workers", "2", "--journal", tmp_path / "journal", *machines.token) as (_, address):
        train_it = [*PHALANX, "train", machines.config, "--run-dir", machines.run, "--coordinator", address]
        with running([*LAUNCHERS[launcher], *train_it, *machines.token]) as command:
            status, _, errors = command.finish()

    assert status == 0, errors
    alone = train(machines.config, "--run-dir", tmp_path / "alone")
    assert digest_of(machines.run) == alone["digest"]
    assert bits_of(machines.run) == bits_of(tmp_path / "alone")
    assert workers_in(machines.run) == [2]


def test_variables_of_srun_do_not_matter(tmp_path, machines):
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]"}
    with serving("--workers", "2", *machines.token) as (_, address), ExitStack() as stack:
        train_it = [*PHALANX, "train", machines.config, "--run-dir", machines.run, "--coordinator", address]
        tasks = [
            stack.enter_context(running([*train_it, *machines.token], SLURM_PROCID=str(rank), **step))
            for rank in range(2)
        ]
        ends = [task.finish() for task in tasks]

    assert [status for status, _, _ in ends] == [0, 0], ends
    assert sum("digest " in out for _, out, _ in ends) == 1  # one of them has written the result
    assert workers_in(machines.run) == [2]


def test_a_worker_with_another_config_is_refused_in_words_that_name_both_sides(machines):
    with serving("--workers", "2", *machines.token) as (coordinator, address):
        options = ["--run-dir", machines.run, "--coordinator", address, *machines.token]
        with running([*PHALANX, "train", machines.config, *options]):
            coordinator.wait_for("has come")

            ended = call("train", machines.config, *options, "--lanes", 4, "--set", "run.threads_per_worker=2")

    assert ended.returncode == 2
    words = "train.lanes is 4 here and 8 there; run.threads_per_worker is 2 here and 1 there"
    assert ended.stderr == f"phalanx: this machine cannot train in that run: {words}\n"
