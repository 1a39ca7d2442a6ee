"""The checkpoints of a run: finding, going on, removing; full disks, and kills."""

import os
import random
import resource
import select
import signal
import struct
from functools import partial

import pytest
import torch
from checkpoint_play import alter, assert_same, kill_at, make, names, remove

from forking import fork, wait
from phalanx.errors import ConfigError
from phalanx.train.checkpoint import Checkpoint, cut, list_checkpoints, load, load_for_resume, prune, save


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


# Going on


def test_what_is_no_checkpoint_is_not_found(folder):
    folder.mkdir(parents=True)
    for name in ("step-1", "step-00000009.bak", ".step-00000009.new", "other"):
        (folder / name).mkdir()
    (folder / "step-00000010").touch()

    with pytest.raises(ConfigError, match="there is no checkpoint in"):
        load_for_resume(folder)


def test_a_run_goes_on_from_its_latest_checkpoint_or_the_one_that_is_named(folder):
    for step in (100, 200):
        save(folder, make(step))

    assert_same(load_for_resume(folder), make(200))
    assert_same(load_for_resume(folder, 100), make(100))


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_offered(folder):
    paths = [save(folder, make(step)) for step in (100, 200, 300)]
    alter(paths[2] / "model.safetensors")

    with pytest.raises(ConfigError) as caught:
        load_for_resume(folder)

    assert str(caught.value) == (
        f"checkpoint {paths[2]} is damaged: model.safetensors does not have the hash in manifest.json; "
        f"step-00000200 is complete: resume from it with --resume {folder.parent} --from-step 200"
    )


def test_what_is_offered_is_whole_and_earlier(folder):
    paths = [save(folder, make(step)) for step in (100, 200, 300, 400)]
    alter(paths[1] / "model.safetensors")
    remove(paths[2] / "model.safetensors")

    with pytest.raises(ConfigError, match=r"--from-step 100$"):
        load_for_resume(folder, 300)


def test_where_nothing_can_be_offered_starting_again_is(folder):
    with pytest.raises(ConfigError) as caught:
        load_for_resume(folder)
    assert str(caught.value) == f"there is no checkpoint in {folder} to resume from: start again without --resume"

    alter(save(folder, make(1)) / "model.safetensors")

    with pytest.raises(ConfigError, match=r"no earlier one is complete: start again without --resume$"):
        load_for_resume(folder)


def test_a_step_without_a_checkpoint_is_answered_with_those_that_have_one(folder):
    for step in (100, 200):
        save(folder, make(step))

    with pytest.raises(ConfigError) as caught:
        load_for_resume(folder, 150)

    words = f"there is no checkpoint of step 150 in {folder}: pass --from-step with one of 100, 200"
    assert str(caught.value) == words


# Naming


def test_a_checkpoint_a_folder_and_a_run_name_their_checkpoints_in_order(folder):
    steps = (100_000_000, 200, 1000)
    for step in steps:
        save(folder, make(step))
    (folder.parent / "config.toml").touch()
    (folder.parent / "last").symlink_to(folder / "step-00001000")
    expected = [folder / f"step-{step:08}" for step in sorted(steps)]

    assert list_checkpoints(folder) == expected
    assert list_checkpoints(folder.parent) == expected
    assert list_checkpoints(folder / "step-00001000") == [expected[1]]
    assert list_checkpoints(folder.parent / "last") == [expected[1]]


@pytest.mark.parametrize(
    ("name", "words"), [("", "checkpoint in"), ("none", "directory"), ("step-00000009", "directory")]
)
def test_where_no_checkpoint_is_that_is_said(tmp_path, name, words):
    with pytest.raises(ConfigError, match=f"^there is no {words} {tmp_path / name}: name "):
        list_checkpoints(tmp_path / name)


# Removing


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(2, None, [4, 5]), (2, 1, [1, 4, 5]), (2, 5, [4, 5]), (1, 99, [5]), (9, None, [1, 2, 3, 4, 5])],
)
def test_the_last_and_the_best_are_kept(folder, keep, best, left):
    for step in range(1, 6):
        save(folder, make(step))

    prune(folder, keep, best)

    assert names(folder) == [f"step-{step:08}" for step in left]


def test_to_keep_none_is_refused(folder):
    save(folder, make(1))

    with pytest.raises(ConfigError, match="at least 1 checkpoint must be kept, not 0"):
        prune(folder, 0)

    assert names(folder) == ["step-00000001"]


def test_checkpoints_after_a_step_are_cut(folder):
    for step in (1, 2, 3):
        save(folder, make(step))

    cut(folder, 1)

    assert names(folder) == ["step-00000001"]


def test_a_checkpoint_that_cannot_be_removed_is_named(folder):
    path = save(folder, make(1))
    save(folder, make(2))
    (folder / ".step-00000001.old" / "in the way").mkdir(parents=True)

    with pytest.raises(ConfigError) as caught:
        prune(folder, 1)

    assert str(caught.value) == f"cannot remove checkpoint {path}: Directory not empty; remove it by hand"


# Failing disks, and kills


def test_a_full_disk_leaves_earlier_checkpoints_and_no_litter(folder):
    first = save(folder, make(1))

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(ConfigError) as caught:
            save(folder, make(2, size=1000))
        assert str(caught.value) == (
            f"cannot write checkpoint {folder}/step-00000002: File too large; earlier checkpoints are unchanged: "
            f"free some space, or make {folder} writable"
        )

    assert wait(fork(fill)) == 0
    assert names(folder) == ["step-00000001"]
    assert_same(load(first), make(1))


def test_an_interruption_leaves_no_litter(folder):
    class Interrupted(torch.Tensor):
        def detach(self):
            raise KeyboardInterrupt

    checkpoint = Checkpoint(1, {"model": {"weight": torch.ones(3).as_subclass(Interrupted)}}, {})

    with pytest.raises(KeyboardInterrupt):
        save(folder, checkpoint)

    assert names(folder) == []


@pytest.mark.slow
def test_killed_before_any_change_to_the_disk_there_is_a_whole_checkpoint_and_the_next_one_can_be_saved(tmp_path):
    def save_two(folder, number):
        kill_at(number)
        save(folder, make(2))
        prune(folder, 1)
        save(folder, make(3))
        prune(folder, 1)

    ended, number = -signal.SIGKILL, 0
    while ended == -signal.SIGKILL:
        number += 1
        folder = tmp_path / str(number)
        save(folder, make(1))

        ended = wait(fork(partial(save_two, folder, number)))

        paths = [folder / name for name in names(folder) if not name.startswith(".")]
        assert paths
        for path in paths:
            assert_same(load(path), make(int(path.name[-8:])))
        save(folder, make(4))
        assert not [name for name in names(folder) if name.startswith(".")]
    assert ended == 0
    assert number > 30


@pytest.mark.slow
def test_killed_at_random_50_times_there_is_always_a_whole_checkpoint_to_go_on_from(folder):
    chance = random.Random(4)  # noqa: S311 - the same moments in every run, as far as the machine is the same
    save(folder, make(0, size=100_000))
    for _ in range(50):
        start = load_for_resume(folder).step

        acknowledged = save_until_killed(folder, start, chance.uniform(0, 0.1))

        found = load_for_resume(folder)
        assert found.step in (acknowledged, acknowledged + 1)
        assert_same(found, make(found.step, size=100_000))
    assert found.step > 50


def save_until_killed(folder, start, seconds):
    """Have a child save one checkpoint after another, and kill it; the last step that it knew to be saved."""
    ready, acknowledge = os.pipe()

    def save_for_ever():
        step = start
        while True:
            step += 1
            save(folder, make(step, size=100_000))
            os.write(acknowledge, struct.pack("Q", step))
            prune(folder, 2)

    pid = fork(save_for_ever)
    os.close(acknowledge)
    with os.fdopen(ready, "rb") as pipe:
        steps = pipe.read(8)  # it is at work
        select.select([], [], [], seconds)
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) == -signal.SIGKILL
        steps += pipe.read()
    return struct.unpack("Q", steps[-8:])[0]
