"""Ranks that save together on failing disks, or are killed while they do."""

import os
import random
import resource
import select
import signal
import struct
from contextlib import suppress

import pytest
import torch
from checkpoint_play import assert_same, kill_at, names
from shard_play import SIZE, cut, fork_seats, make_whole, save_as, save_by_threads, save_shards

from forking import wait
from phalanx.errors import ConfigError, PeerLost
from phalanx.train.checkpoint import Checkpoint, load, load_for_resume, prune


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


def assert_whole(path):
    """See that a checkpoint is what the ranks saved at its step."""
    expected = make_whole(int(path.name[-8:]))
    state = {label: tensor for shard in cut(expected.files["optimizer"]) for label, tensor in shard.items()}
    assert_same(load(path), Checkpoint(expected.step, {**expected.files, "optimizer": state}, expected.facts))


# Failing disks


@pytest.mark.parametrize("full", [0, 2])
def test_a_full_disk_on_one_rank_is_the_same_error_on_all_and_leaves_earlier_checkpoints_and_no_litter(folder, full):
    first = save_shards(folder, make_whole(1))

    def work(seat):
        if seat.rank == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        with pytest.raises(ConfigError) as caught:
            save_as(seat, folder, make_whole(2))
        assert str(caught.value) == (
            f"rank {full} cannot write checkpoint {folder}/step-00000002: File too large; earlier checkpoints are "
            f"unchanged: free some space, or make {folder} writable"
        )

    ended = [wait(pid) for pid in fork_seats(work)]

    assert ended == [0] * SIZE
    assert names(folder) == ["step-00000001"]
    assert_whole(first)


def test_a_folder_that_rank_0_cannot_make_is_the_same_error_on_all(tmp_path):
    (tmp_path / "file").touch()
    whole, folder = make_whole(1), tmp_path / "file" / "checkpoints"

    errors = save_by_threads([folder] * SIZE, whole, cut(whole.files["optimizer"]))

    assert {type(error) for error in errors} == {ConfigError}
    assert {str(error).partition(";")[0] for error in errors} == {
        f"rank 0 cannot write checkpoint {folder}/step-00000001: Not a directory"
    }


def test_a_place_that_rank_0_cannot_take_is_an_error_on_all(tmp_path):
    (tmp_path / "step-00000001").touch()
    whole = make_whole(1)

    errors = save_by_threads([tmp_path] * SIZE, whole, cut(whole.files["optimizer"]))

    assert {type(error) for error in errors} == {ConfigError}
    assert all(str(tmp_path / "step-00000001") in str(error) for error in errors)


def test_an_interruption_of_one_rank_leaves_no_litter(folder):
    class Interrupted(torch.Tensor):
        def detach(self):
            raise InterruptedByHandError

    class InterruptedByHandError(Exception):
        pass

    shards = cut(make_whole(1).files["optimizer"])
    shards[3] = {"layer.bias.table": torch.ones(3).as_subclass(Interrupted)}

    ended = save_by_threads([folder] * SIZE, make_whole(1), shards)

    assert isinstance(ended[3], InterruptedByHandError)
    assert all(isinstance(error, PeerLost) for error in ended[:3])
    assert names(folder) == []


# Kills


@pytest.mark.parametrize(("killed", "least"), [pytest.param(0, 20, marks=pytest.mark.slow), (2, 1)])
def test_killed_before_any_change_to_the_disk_there_is_a_whole_checkpoint_and_the_next_one_can_be_saved(
    tmp_path, killed, least
):
    def save_one(seat, folder, number):
        if seat.rank == killed:
            kill_at(number)
        with suppress(PeerLost):
            save_as(seat, folder, make_whole(2))
            if seat.rank == 0:
                prune(folder, 1)

    ended, number = [-signal.SIGKILL], 0
    while -signal.SIGKILL in ended:
        number += 1
        folder = tmp_path / str(number)
        save_shards(folder, make_whole(1))

        ended = [wait(pid) for pid in fork_seats(lambda seat: save_one(seat, folder, number))]  # noqa: B023

        assert ended == [ended[killed] if rank == killed else 0 for rank in range(SIZE)]
        paths = [folder / name for name in names(folder) if not name.startswith(".")]
        assert paths
        for path in paths:
            assert_whole(path)
        save_shards(folder, make_whole(3))
        assert not [name for name in names(folder) if name.startswith(".")]
    assert number > least


@pytest.mark.slow
def test_killed_at_random_20_times_there_is_always_a_whole_checkpoint_to_go_on_from(folder):
    chance = random.Random(4)  # noqa: S311 - the same moments in every run, as far as the machine is the same
    save_shards(folder, make_whole(0))
    for _ in range(20):
        start = load_for_resume(folder).step

        acknowledged = save_until_killed(folder, start, chance.randrange(SIZE), chance.uniform(0, 0.05))

        found = load_for_resume(folder)
        assert found.step in (acknowledged, acknowledged + 1)
        assert_whole(folder / f"step-{found.step:08}")
    assert found.step >= 20


def save_until_killed(folder, start, killed, seconds):
    """Have ranks save one checkpoint after another, and kill one; the last step that rank 0 knew to be saved."""
    ready, acknowledge = os.pipe()

    def save_for_ever(seat):
        step = start
        with suppress(PeerLost):
            while True:
                step += 1
                save_as(seat, folder, make_whole(step))
                if seat.rank == 0:
                    os.write(acknowledge, struct.pack("Q", step))
                    prune(folder, 2)

    pids = fork_seats(save_for_ever)
    os.close(acknowledge)
    with os.fdopen(ready, "rb") as pipe:
        steps = pipe.read(8)  # they are at work
        select.select([], [], [], seconds)
        os.kill(pids[killed], signal.SIGKILL)
        ended = [wait(pid) for pid in pids]
        assert ended == [-signal.SIGKILL if rank == killed else 0 for rank in range(SIZE)]
        steps += pipe.read()
    return struct.unpack("Q", steps[-8:])[0]
