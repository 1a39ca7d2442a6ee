"""Examples for frameworks give the same bits over Phalanx as over Gloo: a sum of two ranks has only one order."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
NEEDS = {
    "ddp": "torch",
    "fsdp2": "torch",
    "lightning_ddp": "lightning",
    "accelerate_loop": "accelerate",
    "hf_trainer": "transformers",
}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PHALANX_RUN = (sys.executable, "-c", "from phalanx.cli import main; main()", "run", "-n", "2")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # transformers alone takes many seconds to import


def train(launcher, example, backend):
    """Return the losses and the digest of the weights of each of two ranks."""
    command = [*launcher, str(FOLDER / f"{example}.py"), backend]
    environ = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{example} over {backend} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    # Two ranks print to one pipe: their lines may stand side by side.
    pattern = rf"rank (\d+) over {backend}: losses (\[.*?\]), weights ([0-9a-f]{{12}})"
    found = {int(rank): (json.loads(losses), weights) for rank, losses, weights in re.findall(pattern, done.stdout)}
    assert found.keys() == {0, 1}, done.stdout
    return found


@pytest.mark.parametrize("example", NEEDS)
def test_an_example_gives_the_bits_that_it_gives_over_gloo(example):
    if not find_spec(NEEDS[example]):
        pytest.skip(f"{NEEDS[example]} is not installed: pip install phalanx-train[frameworks]")

    expected = train(TORCHRUN, example, "gloo")

    assert train(PHALANX_RUN, example, "phalanx") == expected
    if example == "ddp":
        assert train(TORCHRUN, example, "phalanx") == expected
    losses, weights = expected[0]
    assert losses[-1] < losses[0]
    assert expected[1][1] == weights


@pytest.mark.parametrize("example", NEEDS)
def test_an_example_has_at_most_40_lines(example):
    assert len((FOLDER / f"{example}.py").read_text(encoding="utf-8").splitlines()) <= 40
