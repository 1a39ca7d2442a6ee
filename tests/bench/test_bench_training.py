"""What ``phalanx bench step`` and ``phalanx bench zero`` have in common."""

import pytest

from phalanx.bench.text import parse_systems
from phalanx.bench.training.driver import Training, make_config
from phalanx.bench.training.step import StepSystem
from phalanx.errors import ConfigError
from phalanx.train.shapes import count_parameters


def test_systems_are_measured_in_the_order_in_which_they_are_named():
    assert parse_systems(StepSystem, "no-exchange, engine") == [StepSystem.NO_EXCHANGE, StepSystem.ENGINE]


@pytest.mark.parametrize(("text", "words"), [("engine,nccl", "no system"), ("", "empty place")])
def test_bad_systems_are_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_systems(StepSystem, text)


def test_the_usual_model_has_about_eleven_million_parameters():
    assert count_parameters(make_config(384), 256) == pytest.approx(11e6, rel=0.05)


@pytest.mark.parametrize("width", [0, 63, 100])
def test_a_model_without_whole_heads_is_refused(width):
    with pytest.raises(ConfigError, match="multiple of 64"):
        Training(systems=("engine",), ranks=2, rounds=1, tokens=8, batch=1, width=width, is_fused=False)
