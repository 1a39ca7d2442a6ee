"""Every hostile file is refused by every command that reads it: in one paragraph, and nothing is written."""

import os

import pytest
from hostile_play import assert_refused, call, copy_run, list_tree, make_run

from phalanx.testing.hostile import (
    hostile_checkpoints,
    hostile_configs,
    hostile_data,
    hostile_logs,
    hostile_settings,
    repair_hashes,
)
from phalanx.train.checkpoint import load

AMONG_TENSORS = [each for each in hostile_checkpoints() if each.name.startswith(("optimizer has", "the "))]
OF_ANY_PROGRAM = [
    each
    for each in hostile_checkpoints()
    if each.name.startswith(("model.safetensors has", "optimizer has", "the ")) and "number of steps" not in each.name
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made"), workers=1)


@pytest.fixture(scope="module")
def made_in_shards(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made"), workers=2)


@pytest.fixture
def run(made, tmp_path):
    return copy_run(made, tmp_path)


@pytest.fixture
def run_in_shards(made_in_shards, tmp_path):
    return copy_run(made_in_shards, tmp_path)


@pytest.fixture
def phalanx(capsys, monkeypatch):
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


@pytest.mark.parametrize("kind", ["run", "run_in_shards"])
def test_what_is_made_hostile_was_valid_before(request, phalanx, tmp_path, kind):
    path = request.getfixturevalue(kind).path

    ended = [
        phalanx("checkpoint", "verify", path),
        phalanx("checkpoint", "merge", path, "--out", tmp_path / "merged"),
        phalanx("checkpoint", "inspect", tmp_path / "merged"),
        phalanx("generate", path, "--length", 5),
    ]

    assert [status for status, _, _ in ended] == [0, 0, 0, 0]
    assert load(tmp_path / "merged" / "step-00000004").step == 4


def check_refusals(run, phalanx, tmp_path, hostile):
    path = run.checkpoints / "step-00000004"
    hostile.make(path)
    before = list_tree(tmp_path)

    assert_refused(*phalanx("checkpoint", "verify", path))
    for arguments in (
        ("checkpoint", "inspect", path),
        ("checkpoint", "merge", path, "--out", tmp_path / "out"),
        ("generate", run.path, "--length", 1),
        ("train", "--resume", run.path),
    ):
        ended = phalanx(*arguments)
        assert_refused(*ended)
        assert "step-00000002 is complete" in ended[2], ended

    assert list_tree(tmp_path) == before


@pytest.mark.parametrize("hostile", hostile_checkpoints(), ids=lambda each: each.name)
def test_a_hostile_checkpoint_is_refused_and_the_one_before_it_named(run_in_shards, phalanx, tmp_path, hostile):
    check_refusals(run_in_shards, phalanx, tmp_path, hostile)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", AMONG_TENSORS, ids=lambda each: each.name)
def test_a_hostile_checkpoint_without_shards_is_refused_too(run, phalanx, tmp_path, hostile):
    check_refusals(run, phalanx, tmp_path, hostile)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", OF_ANY_PROGRAM, ids=lambda each: each.name)
def test_a_hostile_checkpoint_whose_facts_name_no_model_is_refused_too(run_in_shards, phalanx, tmp_path, hostile):
    for each in run_in_shards.checkpoints.iterdir():
        (each / "facts.json").write_text('{"lr": 0.1}', encoding="utf-8")
        repair_hashes(each)
    path = run_in_shards.checkpoints / "step-00000004"
    assert load(path).facts == {"lr": 0.1}
    hostile.make(path)
    before = list_tree(tmp_path)

    assert_refused(*phalanx("checkpoint", "verify", path))
    ended = phalanx("checkpoint", "merge", path, "--out", tmp_path / "out")
    assert_refused(*ended)
    assert "step-00000002 is complete" in ended[2], ended

    assert list_tree(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("hostile", hostile_configs(), ids=lambda each: each.name)
def test_a_hostile_config_is_refused(run, phalanx, tmp_path, monkeypatch, hostile):
    monkeypatch.chdir(tmp_path)
    hostile.make(run.config)
    before = list_tree(tmp_path)

    assert_refused(*phalanx("train", run.config))
    assert_refused(*phalanx("train", "--resume", run.path))
    assert_refused(*phalanx("generate", run.path))

    assert list_tree(tmp_path) == before


@pytest.mark.parametrize("setting", hostile_settings(), ids=lambda each: ascii(each[:40]))
def test_a_hostile_setting_is_refused(phalanx, tmp_path, setting):
    ended = phalanx("train", "--run-dir", tmp_path / "run", "--set", setting)

    assert_refused(*ended)
    assert list_tree(tmp_path) == {}


@pytest.mark.parametrize("hostile", hostile_logs(), ids=lambda each: each.name)
def test_a_hostile_log_is_refused(made, run, phalanx, tmp_path, hostile):
    hostile.make(run.steps)
    before = list_tree(tmp_path)

    assert_refused(*phalanx("verify", made.path, run.path))
    assert_refused(*phalanx("plot", run.path))
    assert_refused(*phalanx("train", "--resume", run.path, "--steps", 6))

    assert list_tree(tmp_path) == before


@pytest.mark.parametrize("hostile", hostile_data(), ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["text.txt", "tokens.bin"])
def test_hostile_data_is_refused(phalanx, tmp_path, hostile, name):
    hostile.make(tmp_path / name)
    before = list_tree(tmp_path)

    assert_refused(*phalanx("train", "--run-dir", tmp_path / "run", "--set", f"data.path={tmp_path / name}"))

    assert list_tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["a pipe", "a directory", "not JSON", "empty"])
def test_a_hostile_result_is_refused(run, phalanx, kind):
    {
        "a pipe": os.mkfifo,
        "a directory": os.mkdir,
        "not JSON": lambda path: path.write_bytes(b"[" * 5000),
        "empty": lambda path: path.touch(),
    }[kind](run.result)

    assert_refused(*phalanx("plot", run.path))


def test_a_run_whose_lock_is_a_pipe_is_refused(run, phalanx):
    run.environment.unlink()
    os.mkfifo(run.environment)

    assert_refused(*phalanx("train", "--resume", run.path, "--steps", 6))
