"""Ray Train over Phalanx, with a real Ray on this machine."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'phalanx-train[ray]'")

from phalanx.errors import JoinRefused
from phalanx.ray.backend import late_without_failing

SCRIPT = Path(__file__).with_name("ray_script.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"
STEPS = 40


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder with what the workers wrote, and the step in which one was killed."""
    fatal_step = random.randrange(2, 20)  # noqa: S311 - any step will do
    temporary = tmp_path_factory.mktemp("r")  # the paths of Ray's sockets must be short
    folder = tmp_path_factory.mktemp("notes")
    command = [sys.executable, str(SCRIPT), str(temporary), str(folder), str(fatal_step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, fatal_step


def read_notes(folder):
    """What each worker noted: its lines by the name of its file."""
    return {path.stem: [*map(json.loads, path.read_text().splitlines())] for path in folder.glob("rank*.jsonl")}


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(450)  # Ray takes its time to start
def test_ray_replaces_a_killed_worker_and_every_step_has_the_bits_of_a_calm_run(trained):
    folder, fatal_step = trained

    calm, stormy = read_notes(folder / "calm"), read_notes(folder / "stormy")
    expected = [(line["step"], line["loss"]) for line in next(iter(calm.values()))[:-1]]
    assert [step for step, _ in expected] == list(range(STEPS))
    digests = {lines[-1]["digest"] for notes in (calm, stormy) for lines in notes.values() if "digest" in lines[-1]}
    assert len(digests) == 1, f"worker 1 was killed in step {fatal_step}"
    assert sorted(name.partition("-")[0] for name in stormy) == ["rank0", "rank1", "rank1", "rank2", "rank3"]
    for name, lines in stormy.items():
        steps = [(line["step"], line["loss"]) for line in lines if "step" in line]
        if name.startswith("rank1-"):
            first = steps[0][0]
            assert steps == expected[first : first + len(steps)], f"{name}, killed in step {fatal_step}"
        else:
            assert steps == expected, f"{name} took every step once; worker 1 was killed in step {fatal_step}"
    sizes = [line["size"] for line in next(lines for name, lines in stormy.items() if name.startswith("rank0-"))[:-1]]
    assert sizes[0] == sizes[-1] == 4
    assert 3 in sizes


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(450)  # Ray takes its time to start
def test_an_unmodified_script_of_ray_trains_over_the_torch_backend(trained):
    folder, _ = trained

    backend, *weights = json.loads((folder / "ddp.json").read_text())
    assert backend == "phalanx"
    assert weights == pytest.approx(expected_weights())


def expected_weights():
    """The weights after one step of two workers, whose gradients are 0 and 2 for each weight: 1 on average."""
    import torch

    torch.manual_seed(0)
    return (torch.nn.Linear(3, 1).weight.detach().flatten() - 0.1).tolist()


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(450)  # Ray takes its time to start
def test_the_example_runs():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=200, check=False)

    assert "weights" in done.stdout, done.stdout + done.stderr


def test_a_worker_that_comes_when_the_run_is_over_returns():
    with late_without_failing():
        raise JoinRefused("the coordinator refused this worker: the run is over (its workers finished it at step 9)")


def test_a_worker_that_is_refused_for_another_reason_fails():
    with pytest.raises(JoinRefused), late_without_failing():
        raise JoinRefused("the coordinator refused this worker: you train with 4 lanes, the others with 8")
