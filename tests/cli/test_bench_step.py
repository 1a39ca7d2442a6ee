"""``phalanx bench step``: what it measures, and that every system takes its steps."""

import json
import subprocess
import sys

import pytest

from phalanx.cli.bench_step_plan import StepSystem, make_config, parse_step_systems, rows
from phalanx.errors import ConfigError
from phalanx.train.model import count_parameters


def test_the_overhead_is_against_no_exchange():
    found = rows({StepSystem.ENGINE: [3.0, 1.1, 1.0], StepSystem.NO_EXCHANGE: [1.0, 9.0, 0.5]}, 2, 7)

    assert [(row.system, row.median_s) for row in found] == [("engine", 1.1), ("no-exchange", 1.0)]
    assert [row.overhead for row in found] == pytest.approx([0.1, 0.0])


def test_without_no_exchange_there_is_no_overhead():
    (row,) = rows({StepSystem.DDP_GLOO: [1.0]}, 4, 7)

    assert (row.ranks, row.parameters, row.overhead) == (4, 7, None)


def test_the_usual_model_has_about_eleven_million_parameters():
    assert count_parameters(make_config(384), 256) == pytest.approx(11e6, rel=0.05)


@pytest.mark.parametrize(
    ("text", "words"), [("engine,nccl", "no system"), ("engine,engine", "twice"), ("", "no system")]
)
def test_bad_systems_are_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_step_systems(text)


@pytest.mark.parametrize("width", [0, 63, 100])
def test_a_model_without_whole_heads_is_refused(width):
    with pytest.raises(ConfigError, match="multiple of 64"):
        make_config(width)


@pytest.mark.slow
def test_every_system_is_measured():
    command = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "step", "--json"]
    sizes = ["--ranks", "2", "--rounds", "2", "--tokens", "8", "--width", "64"]

    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=55, check=True)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["system"] for row in found] == [system.value for system in StepSystem]
    assert all(row.keys() == {"system", "ranks", "parameters", "median_s", "overhead"} for row in found)
    assert all(row["median_s"] > 0 for row in found)
