"""Profiling some steps of a worker."""

import json
import logging

import torch

from phalanx.train.profiling import StepProfiler


def operators_of(path):
    return [each["name"] for each in json.loads(path.read_bytes())["traceEvents"] if each.get("cat") == "cpu_op"]


def test_only_the_steps_that_were_asked_for_are_profiled(tmp_path):
    path = tmp_path / "profile/one.json"
    with StepProfiler(path, range(1, 3)) as profiler:
        for step in range(4):
            profiler.before(step)
            torch.ones(step + 1).add_(1)

    assert operators_of(path).count("aten::add_") == 2
    assert list(path.parent.iterdir()) == [path]


def test_a_run_that_ends_in_the_middle_leaves_its_profile(tmp_path):
    with StepProfiler(tmp_path / "one.json", range(1, 9)) as profiler:
        profiler.before(1)
        torch.ones(2).add_(1)

    assert "aten::add_" in operators_of(tmp_path / "one.json")


def test_without_steps_there_is_no_file(tmp_path):
    with StepProfiler(tmp_path / "one.json") as profiler:
        profiler.before(0)

    assert not list(tmp_path.iterdir())


def test_a_profile_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "taken").touch()
    with caplog.at_level(logging.WARNING, "phalanx"), StepProfiler(tmp_path / "taken/one.json", range(1)) as profiler:
        profiler.before(0)

    assert "the run continues without it" in caplog.text
