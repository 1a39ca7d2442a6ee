"""``phalanx bench step``: what it measures, and that every system takes its steps."""

import json
import subprocess
import sys

import pytest

from phalanx.bench.training.driver import Turns
from phalanx.bench.training.step import StepSystem, rows


def test_the_overhead_is_against_no_exchange():
    found = rows(Turns(7, {"engine": [3.0, 1.1, 1.0], "no-exchange": [1.0, 9.0, 0.5]}), 2)

    assert [(row.system, row.median_s) for row in found] == [("engine", 1.1), ("no-exchange", 1.0)]
    assert [row.overhead for row in found] == pytest.approx([0.1, 0.0])


def test_without_no_exchange_there_is_no_overhead():
    (row,) = rows(Turns(7, {"ddp-gloo": [1.0]}), 4)

    assert (row.ranks, row.parameters, row.overhead) == (4, 7, None)


@pytest.mark.slow
def test_every_system_is_measured():
    command = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "step", "--json"]
    sizes = ["--ranks", "2", "--rounds", "2", "--tokens", "8", "--width", "64"]

    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=200, check=True)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["system"] for row in found] == [system.value for system in StepSystem]
    assert all(row.keys() == {"system", "ranks", "parameters", "median_s", "overhead"} for row in found)
    assert all(row["median_s"] > 0 for row in found)
