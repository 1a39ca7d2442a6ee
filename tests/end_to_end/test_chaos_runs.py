"""Runs to which failures happen on purpose: no bit changes."""

import json

import pytest
from training import LIMIT_S, call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]  # real processes, all of them

STEPS = 50
STORM = "kill=6,stop=1,segfault=1,cut=1,hang=1,join=1,coordinator=1"
SMALL = ("--set", "train.batch=8", "--set", "train.eval_every=20", "--set", "run.checkpoint_every=15")


@pytest.mark.parametrize("options", [[], ["--transport", "tcp"], ["--zero"]], ids=["arena", "tcp", "zero"])
def test_a_storm_changes_no_bit(options):
    ended = call("chaos", *SMALL, "--steps", STEPS, "--chaos", STORM, *options, "--json")

    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)
    assert verdict["same"]
    assert verdict["kills"] >= 3
    assert verdict["joins"] >= 3


def test_a_host_that_is_lost_with_all_its_workers_changes_no_bit():
    ended = call("chaos", *SMALL, "--steps", STEPS, "--chaos", "host=1", "--workers", "2:3", "--json")

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["same"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--chaos", "kil=1"], "phalanx: there is no mishap 'kil' in --chaos 'kil=1': name some of kill, stop, "),
        (["--chaos", "kill=1", "--transport", "star"], "phalanx: a run through a gradient server does not survive "),
        (["--workers", "3:2"], "phalanx: run.min_workers 3 is more than run.workers 2: lower it, or raise those"),
        (["--workers", "many"], "phalanx: the number of workers is N or MIN:MAX, as in 4 or 2:8, not 'many'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(tmp_path, options, words):
    ended = call("train", "--run-dir", tmp_path / "run", *options)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(words)
    assert not (tmp_path / "run").exists()
