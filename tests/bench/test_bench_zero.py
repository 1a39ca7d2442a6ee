"""``phalanx bench zero``: what its figures mean, and that every system is timed and weighed."""

import json
import subprocess
import sys

import pytest

from phalanx.bench.training.driver import Turns
from phalanx.bench.training.zero import Memory, ZeroRow, ZeroSystem, cells, rows


def bench(*options, timeout_s):
    command = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "zero", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_a_row_has_the_median_and_the_memory_of_its_own_system():
    turns = Turns(7, {"zero": [1.0, 9.0, 2.0], "full": [3.0]})
    memory = {"full": Memory(80, 200), "zero": Memory(40, 100)}

    found = rows(turns, memory, 2)

    assert found == [ZeroRow("zero", 2, 7, 2.0, 40, 100), ZeroRow("full", 2, 7, 3.0, 80, 200)]


def test_the_table_compares_with_torch_zero():
    table = [ZeroRow("zero", 2, 7, 0.5, 2**20, 3 * 2**19), ZeroRow("torch-zero", 2, 7, 1.0, 0, 0)]

    assert cells(table[0], table) == ("zero", "500 ms", "2.00x", "1.0 MiB", "1.5 MiB")
    assert cells(table[1], table)[2] == "1.00x"


def test_without_torch_zero_the_table_compares_with_nothing():
    table = [ZeroRow("zero", 2, 7, 0.5, 0, 0)]

    assert cells(table[0], table)[2] == ""


def test_a_system_that_does_not_exist_is_refused():
    done = bench("--systems", "zero,fsdp", timeout_s=55)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "phalanx bench: there is no system 'fsdp': choose from zero, full, torch-zero\n"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)  # four times, two processes import torch
def test_every_system_is_timed_and_weighed():
    done = bench("--rounds", "2", "--tokens", "8", "--width", "64", "--json", timeout_s=230)

    assert (done.returncode, done.stderr) == (0, "")
    found = {row["system"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(found) == [system.value for system in ZeroSystem]
    assert all(tuple(row) == ZeroRow.__struct_fields__ for row in found.values())
    assert all(row["median_s"] > 0 for row in found.values())
    assert all(row["peak_bytes"] > row["state_bytes"] for row in found.values())
    assert found["full"]["state_bytes"] > 8 * found["full"]["parameters"]  # two moments of each, and the steps
    for sharded in ("zero", "torch-zero"):
        assert found[sharded]["state_bytes"] == pytest.approx(found["full"]["state_bytes"] / 2, rel=0.1)
