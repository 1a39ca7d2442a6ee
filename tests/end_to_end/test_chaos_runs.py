"""Runs to which failures happen on purpose: no bit changes."""

import json
from types import SimpleNamespace

import pytest
from launching import PHALANX, started
from training import LIMIT_S, call, children_of, command_of, wait_until, workers_of, write_config

from phalanx.launch.network import lacking
from phalanx.transport import Deadline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]  # real processes, all of them

STORM = "kill=6,stop=1,segfault=1,cut=1,hang=1,join=1,coordinator=1"
SMALL = ("--steps", 100, "--set", "model.layers=1", "--set", "train.accumulate=1", "--set", "run.checkpoint_every=15")


@pytest.mark.parametrize("options", [["--transport", "tcp"], ["--zero"]], ids=["tcp", "zero"])
def test_a_storm_changes_no_bit(tmp_path, options):
    ended = call("chaos", write_config(tmp_path), *SMALL, "--chaos", STORM, *options, "--json")

    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)
    assert verdict["same"]
    assert verdict["kills"] >= 3
    assert verdict["joins"] >= 3


@pytest.mark.long
def test_a_host_that_is_lost_with_all_its_workers_changes_no_bit(tmp_path):
    ended = call("chaos", write_config(tmp_path), *SMALL, "--chaos", "host=1", "--workers", "2:3", "--json")

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["same"]


def test_a_storm_on_several_hosts_changes_no_bit(tmp_path):
    if lacking() is not None:
        pytest.skip(str(lacking()))
    storm = "kill=3,stop=1,hang=1,cut=1,join=1,partition=1,host=1,coordinator=1"

    ended = call("chaos", write_config(tmp_path), *SMALL, "--hosts", 2, "--chaos", storm, "--zero", "--json")

    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)
    assert verdict["same"]
    assert verdict["kills"] >= 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", 3], "phalanx: 4 workers cannot be spread evenly over 3 hosts"),
        (["--chaos", "partition=1"], "phalanx: a partition needs several hosts: pass --hosts 2"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(tmp_path, options, words):
    ended = call("chaos", "--run-dir", tmp_path / "runs", *options)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--chaos", "kil=1"], "phalanx: there is no mishap 'kil' in --chaos 'kil=1': name some of kill, stop, "),
        (["--chaos", "kill=1", "--transport", "star"], "phalanx: --chaos makes no sense with --transport star, "),
        (["--chaos", "partition=1"], "phalanx: a partition needs several hosts: leave it out, or use phalanx chaos"),
        (["--workers", "3:2"], "phalanx: run.min_workers 3 is more than run.workers 2: lower it, or raise those"),
        (["--workers", "many"], "phalanx: the number of workers is N or MIN:MAX, as in 4 or 2:8, not 'many'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(tmp_path, options, words):
    ended = call("train", "--run-dir", tmp_path / "run", *options)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(words)
    assert not (tmp_path / "run").exists()


def test_a_storm_that_is_terminated_ends_its_run(tmp_path):
    with started(
        [*PHALANX, "chaos", write_config(tmp_path), "--steps", 100_000, "--run-dir", tmp_path / "runs"]
    ) as storm:
        wait_until(storm, (tmp_path / "runs/calm/steps.jsonl").exists)
        (run,) = children_of(storm.pid)
        workers = workers_of(SimpleNamespace(pid=run))

        storm.terminate()

        assert storm.wait(LIMIT_S) == 143
        end = Deadline.after(LIMIT_S)
        while any(command_of(pid) for pid in (run, *workers)):
            assert not end.has_passed, "its run goes on"
