"""Copies of a state that a thread writes: when they are taken, when they are waited for, failing disks, and kills."""

import os
import resource
import signal
import sys
import threading
import time
from functools import partial

import pytest
import torch
from checkpoint_play import assert_same, kill_at, make, names

from forking import fork, wait
from phalanx.errors import ConfigError
from phalanx.train import background
from phalanx.train.background import BackgroundSaves
from phalanx.train.checkpoint import Checkpoint, load, prune, save

LIMIT_S = 60.0


@pytest.fixture
def saves():
    made = BackgroundSaves()
    yield made
    made.close()


def wait_until_idle(saves):
    end = time.monotonic() + LIMIT_S
    while saves.is_busy:
        assert time.monotonic() < end, "that took too long"
        os.sched_yield()


def test_a_copy_stays_as_it_was_while_it_is_written(saves):
    weight, gate, found = torch.arange(6.0).view(2, 3), threading.Event(), {}

    def write(state, _):
        assert gate.wait(LIMIT_S)
        found.update({name: tensor.tolist() for name, tensor in state["model"].items()})

    saves.begin({"model": {"weight": weight, "turned": weight.T}}, write)
    weight.zero_()
    gate.set()
    saves.wait()

    assert found == {"weight": [[0, 1, 2], [3, 4, 5]], "turned": [[0, 3], [1, 4], [2, 5]]}


def test_the_memory_of_a_copy_is_used_again_as_long_as_it_fits(saves):
    places = []

    def write(state, _):
        places.append({name: tensor.data_ptr() for name, tensor in state["model"].items()})

    for size in (4, 4, 5):
        saves.begin({"model": {"same": torch.ones(3), "grows": torch.ones(size)}}, write)
    saves.wait()

    assert places[0] == places[1]
    assert places[1]["same"] == places[2]["same"]
    assert places[1]["grows"] != places[2]["grows"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_copy_of_a_gpu_is_in_pinned_memory(saves):
    weight, found = torch.full((2**20,), 2.0, device="cuda"), []

    saves.begin({"model": {"weight": weight}}, lambda state, _: found.append(state["model"]["weight"]))
    weight.zero_()
    saves.wait()

    assert (found[0].is_pinned(), found[0].device.type, float(found[0].sum())) == (True, "cpu", 2.0**21)


def test_a_copy_waits_for_the_one_before_it(saves):
    gate, found = threading.Event(), []

    def write(state, _):
        assert gate.wait(LIMIT_S)
        found.append(float(state["model"]["weight"]))

    saves.begin({"model": {"weight": torch.tensor(1.0)}}, write)
    opener = threading.Thread(target=gate.set)
    opener.start()
    saves.begin({"model": {"weight": torch.tensor(2.0)}}, write)
    saves.wait()
    opener.join()

    assert found == [1.0, 2.0]


def test_closing_waits_for_the_copy_that_is_being_written(saves):
    gate, written = threading.Event(), []

    def write(*_):
        assert gate.wait(LIMIT_S)
        written.append(True)

    saves.begin({}, write)
    closer = threading.Thread(target=saves.close)
    closer.start()
    gate.set()
    closer.join()

    assert written == [True]


def test_an_error_is_raised_once_by_the_next_call_that_asks(saves):
    def refuse(*_):
        raise ConfigError("there is no room")

    saves.check()
    saves.begin({}, refuse)
    wait_until_idle(saves)

    with pytest.raises(ConfigError, match=r"^there is no room$"):
        saves.check()
    saves.check()


@pytest.mark.parametrize(
    "end", [BackgroundSaves.wait, BackgroundSaves.close, lambda saves: saves.begin({}, lambda *_: None)]
)
def test_the_thread_rests_until_somebody_waits_for_it(saves, monkeypatch, end):
    monkeypatch.setattr(background, "_REST", 1e9)
    is_resting, is_written = threading.Event(), threading.Event()

    def write(_, pace):
        is_resting.set()
        pace()
        is_written.set()

    saves.begin({}, write)
    assert is_resting.wait(LIMIT_S)
    assert not is_written.wait(0.1)
    end(saves)

    assert is_written.is_set()


def test_a_checkpoint_is_written_at_the_pace_of_the_thread(tmp_path):
    rests = []

    save(tmp_path, make(1, size=2**21), pace=lambda: rests.append(True))

    assert len(rests) == 6  # two files with a header and 8 MiB each


@pytest.mark.skipif(sys.platform != "linux", reason="there a thread has no priority of its own")
def test_only_the_thread_that_writes_has_a_low_priority(saves):
    before, found = os.getpriority(os.PRIO_PROCESS, 0), []

    saves.begin({}, lambda *_: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    saves.wait()

    assert found == [19]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


# Failing disks, and kills


def write_to(folder, step):
    """What a thread does with a copy of ``make(step)``."""

    def write(state, pace):
        save(folder, Checkpoint(step, state, make(step).facts), pace=pace)
        prune(folder, 1)

    return write


@pytest.mark.slow
def test_killed_before_any_change_to_the_disk_there_is_a_whole_checkpoint(tmp_path):
    def save_two(folder, number):
        kill_at(number)
        saves = BackgroundSaves()
        for step in (2, 3):
            saves.begin(make(step).files, write_to(folder, step))
        saves.wait()

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
    assert ended == 0
    assert number > 30


def test_a_full_disk_leaves_earlier_checkpoints_and_no_litter(tmp_path):
    first = save(tmp_path, make(1))

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        saves = BackgroundSaves()
        saves.begin(make(2, size=1000).files, write_to(tmp_path, 2))
        with pytest.raises(ConfigError, match="File too large; earlier checkpoints are unchanged"):
            saves.wait()

    assert wait(fork(fill)) == 0
    assert names(tmp_path) == ["step-00000001"]
    assert_same(load(first), make(1))
