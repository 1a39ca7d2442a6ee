"""Runs that are stopped or killed, and go on elsewhere as if nothing had happened."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
from launching import Watched
from training import (
    LIMIT_S,
    bits_of,
    call,
    checkpoints_of,
    children_of,
    command_of,
    coordinator_of,
    read_until,
    train,
    training,
    wait_until,
    workers_in,
    workers_of,
    write_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them

STEPS = 60  # enough for a signal to come in between, on a busy machine too
END_S = 30  # for processes to notice that another is gone


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("stops"))


@pytest.fixture(scope="module")
def whole(config):
    """The digest of a run that nobody has stopped, and where it is kept."""
    run = config.parent / "whole"
    return train(config, "--steps", STEPS, "--run-dir", run)["digest"], run


def go_on(run, *options):
    """Go on with a run to its end, and return the digest."""
    result = train("--resume", run, *options)
    assert result["steps"] == STEPS
    return result["digest"]


def maps_of(pid):
    """The files that a process has mapped; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return ""


@pytest.mark.parametrize(
    ("number", "before", "after"),
    [(signal.SIGINT, 2, ["--workers", 3, "--transport", "tcp"]), (signal.SIGTERM, 3, ["--workers", 1])],
)
def test_a_run_that_is_asked_to_stop_saves_itself_and_goes_on_with_other_workers(
    config, whole, tmp_path, number, before, after
):
    digest, reference = whole
    run = tmp_path / "run"
    options = ["--set", "train.eval_every=1", "--set", "run.checkpoint_every=1000"]

    with training(config, "--steps", STEPS, "--workers", before, "--run-dir", run, *options) as process:
        read_until(process, "step 12 ")
        process.send_signal(number)
        out, err = process.communicate()
    steps = len(bits_of(run))
    found = checkpoints_of(run)
    digest_after = go_on(run, *after)

    verdict = call("verify", reference, run)
    assert (process.returncode, err) == (128 + number, "")
    assert out.endswith(f"\nstopped early; continue with: phalanx train --resume {run}\n")
    assert (12 <= steps < STEPS, found) == (True, [steps])
    assert (digest_after, bits_of(run)) == (digest, bits_of(reference))
    assert (verdict.returncode, verdict.stdout) == (0, f"the same for all {STEPS} steps, bit for bit\n")


def test_a_worker_that_is_asked_to_stop_leaves_and_the_others_go_on(config, whole, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run) as process:
        read_until(process, "step ")
        os.kill(workers_of(process)[1], signal.SIGTERM)
        _, err = process.communicate()

    assert process.returncode == 0
    assert re.fullmatch(r"phalanx: rank [01] left, as it was asked to; the run goes on\n", err)
    assert bits_of(run) == bits_of(whole[1])
    assert workers_in(run) == [2, 1]


def test_workers_that_are_all_asked_to_leave_save_the_run_first(config, whole, tmp_path):
    digest, reference = whole
    run = tmp_path / "run"
    options = ["--set", "run.checkpoint_every=1000"]

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run, *options) as process:
        read_until(process, "step ")
        for worker in workers_of(process):
            os.kill(worker, signal.SIGTERM)
        process.communicate()
    steps = len(bits_of(run))

    assert (steps < STEPS, checkpoints_of(run)) == (True, [steps])
    assert (go_on(run, "--workers", 2), bits_of(run)) == (digest, bits_of(reference))


def test_a_run_that_is_stopped_while_it_imports_ends_quietly_with_nothing_to_resume(config, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run) as process:
        read_until(process, "run ")
        wait_until(process, lambda: "libtorch" in "".join(map(maps_of, children_of(process.pid))))  # workers come later
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()

    assert (process.returncode, out) == (130, "")
    assert err == f"phalanx train: there is no checkpoint to resume from: remove {run}, and start again\n"


def test_a_worker_that_is_killed_before_the_first_step_is_replaced(config, whole, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run) as process:
        wait_until(process, lambda: len(workers_of(process)) == 2)
        os.kill(workers_of(process)[1], signal.SIGKILL)
        _, err = process.communicate()

    assert process.returncode == 0
    assert re.fullmatch(r"phalanx: (worker|rank) [01] was killed by SIGKILL; the run goes on\n", err)
    assert bits_of(run) == bits_of(whole[1])


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_that_is_killed_is_replaced_and_no_bit_changes(config, whole, tmp_path, victim):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 3, "--run-dir", run) as process:
        read_until(process, "step 12 ")
        os.kill(workers_of(process)[victim], signal.SIGKILL)
        _, err = process.communicate()

    assert process.returncode == 0
    assert re.fullmatch(r"phalanx: rank [012] was killed by SIGKILL; the run goes on\n", err)
    assert bits_of(run) == bits_of(whole[1])
    assert workers_in(run)[:2] == [3, 2]
    assert call("verify", whole[1], run).returncode == 0


def test_a_run_whose_workers_are_all_killed_goes_on_from_its_last_checkpoint(config, whole, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run) as process:
        read_until(process, "step 12 ")
        for worker in workers_of(process):
            os.kill(worker, signal.SIGKILL)
        _, err = process.communicate()

    assert process.returncode == 0
    assert "phalanx: the state of the run was lost with its workers: it goes on from the checkpoint of step " in err
    assert bits_of(run) == bits_of(whole[1])


def test_workers_that_keep_dying_end_the_run_with_a_reason(config, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 1, "--run-dir", run) as process:
        read_until(process, "run ")
        while process.poll() is None:
            nursery = [pid for pid in children_of(process.pid) if b"phalanx.launch.nursery" in command_of(pid)]
            for worker in children_of(nursery[0]) if nursery else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGSEGV)
        err = process.stderr.read()

    assert process.returncode in (2, 128 + signal.SIGSEGV)
    assert re.search(
        "workers died one after another at step 0, and no step was taken between"
        "|all workers were lost 4 times, and no checkpoint was saved between",
        err,
    )


def test_a_coordinator_that_is_killed_is_started_again(config, whole, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run) as process:
        read_until(process, "step 12 ")
        os.kill(coordinator_of(process), signal.SIGKILL)
        _, err = process.communicate()

    assert (process.returncode, err) == (0, "")
    assert bits_of(run) == bits_of(whole[1])


def test_nothing_is_left_running_when_the_launcher_and_its_gradient_server_are_killed(config, whole, tmp_path):
    digest, reference = whole
    run = tmp_path / "run"

    with training(config, "--steps", STEPS, "--workers", 2, "--transport", "star", "--run-dir", run) as process:
        read_until(process, "step 12 ")
        watched = Watched(workers_of(process))
        process.kill()
        left = watched.left_after(END_S)

    assert left == []
    assert (go_on(run, "--workers", 1), bits_of(run)) == (digest, bits_of(reference))
