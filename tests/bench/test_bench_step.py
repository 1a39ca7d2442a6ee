"""``phalanx bench step``: what it measures, and that every system takes its steps."""

import json
import subprocess
import sys

import pytest

from phalanx.bench.training.driver import Turns
from phalanx.bench.training.step import StepSystem, choose_telemetry, describe_cost, rows
from phalanx.errors import ConfigError


def test_the_overhead_is_against_no_exchange():
    found = rows(Turns(7, {"engine": [3.0, 1.1, 1.0], "no-exchange": [1.0, 9.0, 0.5]}), 2)

    assert [(row.system, row.median_s) for row in found] == [("engine", 1.1), ("no-exchange", 1.0)]
    assert [row.overhead for row in found] == pytest.approx([0.1, 0.0])
    assert [row.over_unguarded for row in found] == [None, None]


def test_a_guarded_step_is_compared_with_the_unguarded_one_of_its_round():
    guarded, unguarded = [1.02, 2.08, 9.0, 1.04, 3.06, 1.04], [1.0, 2.0, 1.0, 1.0, 3.0, 1.0]

    found = rows(Turns(7, {"engine-elastic": guarded, "engine-unguarded": unguarded}), 2)

    assert [row.over_unguarded for row in found] == pytest.approx([0.03, 0.0])


def test_without_no_exchange_there_is_no_overhead():
    (row,) = rows(Turns(7, {"ddp-gloo": [1.0]}), 4)

    assert (row.ranks, row.parameters, row.overhead) == (4, 7, None)


def test_telemetry_costs_the_median_of_pairs_of_steps_in_either_order():
    without, with_it = [1.0, 1.03, 2.0, 2.06, 1.0, 9.0], [1.03, 1.01, 2.06, 2.02, 7.0, 9.0]
    found = rows(Turns(7, {"engine": without, "engine-telemetry": with_it}), 2)

    assert [row.telemetry_cost for row in found] == [None, pytest.approx((1.03 + 1.01 / 1.03) / 2 - 1)]
    assert "+0.53%" in describe_cost(found)
    assert describe_cost(found[:1]) == ""


def test_the_engine_is_measured_in_every_state_that_was_asked_for():
    both = [StepSystem.ENGINE_TELEMETRY, StepSystem.ENGINE]

    assert choose_telemetry([StepSystem.ENGINE, StepSystem.NO_EXCHANGE], "on,off") == [*both, StepSystem.NO_EXCHANGE]
    assert choose_telemetry([StepSystem.ENGINE], "off") == [StepSystem.ENGINE]
    for wrong in ("", "yes", "on,on"):
        with pytest.raises(ConfigError, match="--telemetry is on, off, or on,off"):
            choose_telemetry([StepSystem.ENGINE], wrong)


@pytest.mark.slow
def test_every_system_is_measured():
    command = [sys.executable, "-c", "from phalanx.cli import main; main()", "bench", "step", "--json"]
    sizes = ["--ranks", "2", "--rounds", "2", "--tokens", "8", "--width", "64", "--telemetry", "off,on"]

    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=200, check=True)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["system"] for row in found] == [system.value for system in StepSystem]
    assert all(
        row.keys() == {"system", "ranks", "parameters", "median_s", "overhead", "telemetry_cost", "over_unguarded"}
        for row in found
    )
    assert all(row["median_s"] > 0 for row in found)
