"""``phalanx bench torch``: what it measures, and that both backends are measured."""

import json
import subprocess
import sys

import pytest

from phalanx.bench.training.torch_backend import BackendRow, cells


def test_a_line_says_how_much_faster_than_gloo():
    rows = [BackendRow("ddp", system, 2, 4096, seconds) for system, seconds in (("phalanx", 0.5), ("gloo", 2.0))]

    assert cells(rows[0], rows) == ("ddp", "4 KiB", "phalanx", "500 ms", "4.00x")


@pytest.mark.slow
def test_both_backends_are_measured():
    command = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "torch", "--json"]
    sizes = ["--ranks", "2", "--sizes", "4KiB", "--rounds", "2", "--steps", "2", "--tokens", "8", "--width", "64"]

    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=200, check=True)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["what"], row["system"]) for row in found] == [
        (what, system) for what in ("all_reduce", "ddp", "fsdp2") for system in ("phalanx", "gloo")
    ]
    assert all(row.keys() == {"what", "system", "ranks", "bytes", "median_s"} for row in found)
