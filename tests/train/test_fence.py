"""Only the worker that keeps a run in its latest epoch may write."""

import multiprocessing
import os
import signal

import pytest

from phalanx.errors import ConfigError
from phalanx.train import fence as fence_module
from phalanx.train.fence import Fence


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keeper"


def may_write(fence, epoch):
    with fence.enter(epoch) as may:
        return may


def test_a_worker_of_an_older_epoch_must_not_write(path):
    with Fence(path) as old, Fence(path) as new:
        answers = [may_write(old, 5), may_write(new, 6), may_write(old, 5), may_write(new, 6), may_write(old, 7)]

    assert answers == [True, True, False, True, True]


def test_a_worker_that_has_not_written_yet_must_not_either_once_a_later_epoch_has(path):
    with Fence(path) as new:
        assert may_write(new, 6)

    with Fence(path) as old:
        assert not may_write(old, 5)


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"words"])
def test_a_torn_file_is_written_again(path, content):
    path.write_bytes(content)

    with Fence(path) as fence:
        assert [may_write(fence, 3), may_write(fence, 2)] == [True, False]


def hold(path, is_held):
    with Fence(path) as fence, fence.enter(1):
        is_held.set()
        while True:
            signal.pause()


@pytest.mark.slow  # waits until the holder counts as stuck
def test_a_holder_that_was_stopped_is_killed(path):
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    holder = context.Process(target=hold, args=(path, is_held))
    holder.start()
    assert is_held.wait(60)
    os.kill(holder.pid, signal.SIGSTOP)

    with Fence(path) as fence:
        assert may_write(fence, 2)

    holder.join(60)
    assert holder.exitcode == -signal.SIGKILL


def test_a_holder_that_cannot_be_ended_is_reported(path, monkeypatch):
    monkeypatch.setattr(fence_module, "_LONGEST_S", 0.1)
    with (
        Fence(path) as holder,
        holder.enter(1),
        Fence(path) as other,
        pytest.raises(ConfigError, match=r"^another process has held .* end it, then resume the run"),
    ):
        may_write(other, 2)


def test_two_threads_of_a_worker_can_be_inside_and_others_wait_for_both(path, monkeypatch):
    monkeypatch.setattr(fence_module, "_LONGEST_S", 0.1)
    with Fence(path) as own, Fence(path) as other:
        with own.enter(1) as first, own.enter(2) as second:
            pass  # a thread that enters need not wait, whichever thread it is
        with own.enter(2):
            with own.enter(1) as third:
                pass
            with pytest.raises(ConfigError, match=r"^another process has held"):
                may_write(other, 3)
        answer = may_write(other, 3)

    assert (first, second, third, answer) == (True, True, False, True)
