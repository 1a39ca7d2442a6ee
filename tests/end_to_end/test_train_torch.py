"""``phalanx train --engine torch``: the digest of our own transports, over groups of torch.distributed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launching import PHALANX, finish, started
from training import (
    LIMIT_S,
    bits_of,
    call,
    checkpoints_of,
    train,
    training,
    wait_until,
    workers_in,
    workers_of,
    write_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]  # real processes, all of them

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
CLUSTERS = Path(__file__).parents[2] / "docs" / "clusters.md"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def alone(config):
    """A run of one worker over our own transports: its digest, and where it is kept."""
    run = config.parent / "alone"
    return train(config, "--run-dir", run)["digest"], run


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_over_gloo_gives_the_bits_of_our_own_transports(config, alone, tmp_path, workers):
    digest, reference = alone
    run = tmp_path / "run"

    result = train(config, "--engine", "torch", "--torch-backend", "gloo", "--workers", workers, "--run-dir", run)

    assert (result["digest"], result["workers"]) == (digest, workers)
    assert bits_of(run) == bits_of(reference)
    assert call("verify", reference, run).stdout == "the same for all 30 steps, bit for bit\n"


@pytest.mark.skipif(not (torch.cuda.is_available() and dist.is_nccl_available()), reason="there is no GPU with NCCL")
def test_one_worker_over_nccl_gives_the_bits_of_our_own_transports(config, tmp_path):
    own = train(config, "--device", "cuda", "--run-dir", tmp_path / "own")

    over_nccl = ["--engine", "torch", "--torch-backend", "nccl", "--device", "cuda"]
    result = train(config, *over_nccl, "--run-dir", tmp_path / "run")

    assert result["digest"] == own["digest"]
    assert bits_of(tmp_path / "run") == bits_of(tmp_path / "own")


@pytest.mark.skipif(not (shutil.which("mpirun") and dist.is_mpi_available()), reason="no mpirun, or torch has no MPI")
def test_mpi_gives_the_bits_of_our_own_transports(config, alone, tmp_path):
    digest, _ = alone
    train_it = [*PHALANX, "train", config, "--engine", "torch", "--torch-backend", "mpi", "--json"]

    ended = finish([*MPIRUN, "-n", 3, *train_it, "--run-dir", tmp_path / "run"])

    assert ended.returncode == 0, ended.stderr
    assert digest in ended.stdout


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_another_launcher_can_start_the_workers(config, alone, tmp_path, launcher):
    digest, reference = alone
    if launcher == "mpirun" and not shutil.which("mpirun"):
        pytest.skip("there is no mpirun")
    start = [*TORCHRUN, "--nproc-per-node=2", "--no-python"] if launcher == "torchrun" else [*MPIRUN, "-n", "2"]

    ended = finish([*start, *PHALANX, "train", config, "--engine", "torch", "--run-dir", tmp_path / "run"])

    assert ended.returncode == 0, ended.stderr
    assert f"digest {digest[:16]}" in ended.stdout
    assert ended.stdout.count("digest ") == 1  # rank 0 speaks for all
    assert bits_of(tmp_path / "run") == bits_of(reference)
    assert workers_in(tmp_path / "run") == [2]


def test_srun_says_where_the_workers_meet(config, alone, tmp_path):
    step = {"SLURM_JOB_ID": f"{os.getpid()}", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "here"}
    train_it = [*PHALANX, "train", config, "--engine", "torch", "--run-dir", tmp_path / "run", "--json"]
    with ExitStack() as stack:
        tasks = [stack.enter_context(started(train_it, SLURM_PROCID=f"{rank}", **step)) for rank in range(2)]
        ends = [(*task.communicate(timeout=LIMIT_S), task.returncode) for task in tasks]

    assert [status for _, _, status in ends] == [0, 0], ends
    assert alone[0] in ends[0][0]


def test_a_run_goes_on_over_the_other_engine_from_its_checkpoint(config, alone, tmp_path):
    digest, reference = alone
    run = shutil.copytree(reference, tmp_path / "run")

    over_torch = train("--resume", run, "--from-step", 20, "--engine", "torch", "--workers", 2)
    over_ours = train("--resume", run, "--from-step", 25, "--engine", "phalanx", "--workers", 3)

    assert (over_torch["digest"], over_ours["digest"]) == (digest, digest)
    assert workers_in(run) == [1, 2, 3]


def test_a_killed_worker_ends_the_run_and_is_named(config, tmp_path):
    run = tmp_path / "run"
    options = ["--engine", "torch", "--workers", "3", "--steps", "100000", "--run-dir", run]
    with training(config, *options) as process:
        wait_until(process, lambda: checkpoints_of(run))
        os.kill(workers_of(process)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 128 + signal.SIGKILL
    assert "phalanx: rank 1 failed first: it was killed by SIGKILL" in errors
    assert errors.count("PeerLost: rank 1 of 3 was lost during ") == 2
    assert f"resume from the last checkpoint with --resume {run}" in errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--zero"], "--zero needs our own transports"),
        (["--paranoid"], "--paranoid needs our own transports"),
        (["--transport", "star"], "--transport needs our own transports"),
        (["--workers", "2:4"], "a range of workers needs our own transports"),
        (["--chaos", "kill=1"], "--chaos makes no sense with --engine torch, where a run ends with the first worker"),
        (["--bind", "127.0.0.1:0"], "--bind makes no sense with --engine torch"),
        (["--coordinator", "127.0.0.1:1"], "--coordinator makes no sense with --engine torch"),
        (["--engine", "phalanx", "--torch-backend", "gloo"], "run.torch_backend is for run.engine torch"),
    ],
)
def test_what_a_torch_group_cannot_do_is_refused_before_anything_is_made(tmp_path, options, words):
    ended = call("train", write_config(tmp_path), "--engine", "torch", *options, cwd=tmp_path)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(dist.is_nccl_available(), reason="this build of torch has NCCL")
def test_a_backend_that_torch_lacks_is_refused_in_words(config, tmp_path):
    ended = call("train", config, "--engine", "torch", "--torch-backend", "mpi", "--run-dir", tmp_path / "run")

    assert ended.returncode == 1
    assert "this build of torch has no mpi: pass another --torch-backend" in ended.stderr


def test_the_script_in_the_document_runs_under_torchrun_and_alone_with_the_same_digest(tmp_path):
    code = re.search(r"```python\n(.*?)```", CLUSTERS.read_text(encoding="utf-8"), re.DOTALL)[1]
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")

    digests = {
        size: re.findall(  # not line by line: two ranks may print into one line
            "[0-9a-f]{32}",
            subprocess.run(
                [*TORCHRUN, f"--nproc-per-node={size}", script],
                capture_output=True,
                text=True,
                check=True,
                timeout=LIMIT_S,
            ).stdout,
        )
        for size in (1, 2)
    }

    assert len(digests[1]) == 3
    assert sorted(digests[2]) == sorted(2 * digests[1])
