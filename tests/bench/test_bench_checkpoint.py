"""``phalanx bench checkpoint``: what its figures mean, and that every way to save is timed."""

import json
import subprocess
import sys

import pytest

from phalanx.bench.training.checkpoint import MODELS, Saving, SavingRow, Window, Windows, cells, rows
from phalanx.train.config import ModelConfig
from phalanx.train.shapes import count_parameters


def test_a_checkpoint_costs_its_pause_and_what_the_steps_beside_it_take_longer():
    usual = [Window(0.0, [1.0, 9.0, 1.0]), Window(0.0, [1.0] * 3), Window(0.0, [2.0] * 3)]
    waiting = [Window(3.0, [1.0]), Window(3.0, [1.0]), Window(3.0, [2.0])]
    beside = [Window(0.5, [1.25, 1.25]), Window(0.5, [1.0]), Window(0.5, [2.5, 2.5, 2.5])]

    found = rows(Windows(7, {"none": usual, "foreground": waiting, "background": beside}), 2)

    assert found == [
        SavingRow("none", 2, 7, step_s=1.0, pause_s=0.0, steps=3, lost_s=0.0, added=0.0),
        SavingRow("foreground", 2, 7, step_s=1.0, pause_s=3.0, steps=1, lost_s=3.0, added=3.0),
        SavingRow("background", 2, 7, step_s=1.875, pause_s=0.5, steps=2, lost_s=1.0, added=0.5),
    ]


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("none", ("none", "1.00 s", "", "", "", "")),
        ("foreground", ("foreground", "1.00 s", "500 ms", "none", "-2.0 ms", "-3.0%")),
        ("background", ("background", "1.00 s", "500 ms", "2.5", "-2.0 ms", "-3.0%")),
    ],
)
def test_the_table_says_only_what_a_way_to_save_has(system, expected):
    assert cells(SavingRow(system, 2, 7, step_s=1.0, pause_s=0.5, steps=2.5, lost_s=-0.002, added=-0.03)) == expected


def test_the_models_are_the_default_one_and_one_of_eleven_million_parameters():
    assert MODELS[0] == ModelConfig()
    assert count_parameters(MODELS[1], 256) == pytest.approx(11e6, rel=0.05)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)  # two processes import torch, twice
def test_every_way_to_save_is_timed():
    command = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "checkpoint"]
    options = ["--rounds", "1", "--tokens", "4", "--batch", "1", "--json"]

    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=230, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["system"] for row in found] == [saving.value for saving in Saving] * len(MODELS)
    assert all(tuple(row) == SavingRow.__struct_fields__ for row in found)
    assert all(row["step_s"] > 0 and row["pause_s"] > 0 and row["steps"] >= 1 for row in found)
