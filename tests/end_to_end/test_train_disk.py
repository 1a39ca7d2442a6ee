"""A disk that is full while a run writes: it ends with a sentence, and what was written before stays whole."""

import re
import resource
import shutil

import pytest
from training import (
    LIMIT_S,
    bits_of,
    call,
    checkpoints_of,
    read_until,
    train,
    training,
    wait_until,
    workers_of,
    write_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them

STEPS = 60
CHECKPOINT_BYTES = 30_000  # less than the weights take, and more than the log
LOG_BYTES = 2_000  # less than the log has by then


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def digest(config):
    """That of a run whose disk has room."""
    return train(config, "--steps", STEPS, "--run-dir", config.parent / "whole")["digest"]


@pytest.mark.parametrize(
    ("limit_bytes", "words"),
    [
        (
            CHECKPOINT_BYTES,
            "cannot write checkpoint {run}/checkpoints/step-000000.0: File too large; earlier checkpoints",
        ),
        (
            LOG_BYTES,
            (
                "cannot write step .. to {run}/steps.jsonl: File too large; free some space, "
                "then continue with --resume {run}"
            ),
        ),
    ],
)
def test_a_run_that_cannot_write_ends_with_a_sentence_and_goes_on_when_it_can(
    config, digest, tmp_path, limit_bytes, words
):
    run = tmp_path / "run"
    options = ["--set", "run.checkpoint_every=10", "--set", "run.keep=100"]

    with training(config, "--steps", STEPS, "--workers", 2, "--run-dir", run, *options) as process:
        read_until(process, "step 12 ")
        wait_until(process, lambda: checkpoints_of(run))  # that of step 10 is written beside the next steps
        for worker in workers_of(process):
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        _, err = process.communicate()
    found = checkpoints_of(run)
    steps = len(bits_of(run))
    result = train("--resume", run)

    sentence = words.format(run=re.escape(str(run)))
    assert process.returncode == 1
    assert re.search(rf"^\[rank 0\] phalanx\.errors\.ConfigError: {sentence}", err, re.MULTILINE), err
    assert re.search(
        rf"^\[rank 1\] phalanx\.errors\.RemoteError: rank 0 stopped at step \d\d: {sentence}", err, re.MULTILINE
    )
    assert "phalanx: rank 0 failed first" in err
    assert "Traceback" not in err
    assert (found[0], found[-1] <= steps < STEPS) == (10, True)
    assert result["digest"] == digest


def test_a_config_that_cannot_be_written_stops_a_resumption_before_anything_is_changed(config, digest, tmp_path):
    run = config.parent / "whole"
    before = (run / "config.toml").read_bytes(), bits_of(run), checkpoints_of(run)

    ended = call(
        *("train", "--resume", run, "--steps", STEPS + 1, "--from-step", STEPS),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"phalanx: cannot write to {run}: File too large; fix that, then try again\n"
    assert ((run / "config.toml").read_bytes(), bits_of(run), checkpoints_of(run)) == before


def test_a_run_directory_that_is_removed_halts_all_workers_at_the_next_step(config, tmp_path):
    run = tmp_path / "run"

    with training(config, "--steps", 100_000, "--workers", 2, "--run-dir", run) as process:
        log = run / "steps.jsonl"
        wait_until(process, lambda: log.exists() and log.read_bytes())  # rank 0 has opened it, and reads it no more
        shutil.rmtree(run)
        _, err = process.communicate()

    assert process.returncode == 1
    assert re.search(
        r"^\[rank 0\] phalanx\.errors\.ConfigError: cannot write step \d+ to .*: it was removed", err, re.MULTILINE
    )
    assert re.search(r"^\[rank 1\] phalanx\.errors\.RemoteError: rank 0 stopped at step \d+: ", err, re.MULTILINE)
    assert err.endswith("phalanx train: the directory of the run is gone: start again\n")
    assert not run.exists()
