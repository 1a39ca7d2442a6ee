"""Runs whose workers share the optimizer: the bits of those that do not, and checkpoints for any number of workers."""

import shutil

import pytest
from training import LIMIT_S, bits_of, call, train, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("zero"))


@pytest.fixture(scope="module")
def full(config):
    """A run of one worker that keeps all of the optimizer."""
    run = config.parent / "full"
    return train(config, "--set", "run.keep=9", "--run-dir", run)["digest"], run


@pytest.fixture(scope="module")
def half(config):
    """A run of four workers that share it, of which only the checkpoint in the middle is left."""
    run = config.parent / "half"
    train(config, "--set", "run.keep=9", "--workers", 4, "--zero", "--run-dir", run)
    for path in run.glob("checkpoints/step-*"):
        if path.name != "step-00000015":
            shutil.rmtree(path)
    return run


@pytest.mark.parametrize(("workers", "transport"), [(1, "auto"), (2, "tcp"), (4, "arena")])
def test_any_number_of_workers_that_share_an_optimizer_gives_the_bits_of_one(
    config, full, tmp_path, workers, transport
):
    digest, reference = full
    run = tmp_path / "run"

    result = train(config, "--workers", workers, "--transport", transport, "--zero", "--run-dir", run)

    assert result["digest"] == digest
    assert bits_of(run) == bits_of(reference)


@pytest.mark.parametrize(("workers", "zero"), [(1, "--zero"), (2, "--no-zero"), (5, "--zero")])
def test_a_checkpoint_of_four_goes_on_with_any_number(full, half, tmp_path, workers, zero):
    digest, reference = full
    run = shutil.copytree(half, tmp_path / "run")

    result = train("--resume", run, "--from-step", 15, "--workers", workers, zero)

    assert result["digest"] == digest
    assert bits_of(run) == bits_of(reference)


def test_a_merged_checkpoint_is_that_of_the_full_optimizer(full, half, tmp_path):
    _, reference = full

    merged = call("checkpoint", "merge", half, "--out", tmp_path)

    assert merged.returncode == 0
    names = "optimizer.safetensors", "model.safetensors"
    ours, theirs = tmp_path / "step-00000015", reference / "checkpoints" / "step-00000015"
    assert [(ours / name).read_bytes() for name in names] == [(theirs / name).read_bytes() for name in names]


def test_workers_that_can_only_call_out_share_nothing(config, tmp_path):
    ended = call("train", config, "--zero", "--transport", "star", "--run-dir", tmp_path / "run")

    assert ended.returncode == 2
    assert "workers that reach only a gradient server cannot share the optimizer" in ended.stderr
    assert not (tmp_path / "run").exists()
