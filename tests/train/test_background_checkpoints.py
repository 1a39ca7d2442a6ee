"""Checkpoints of a run that are written while the next steps are taken."""

import os
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
from run_records import make_step
from tiny import make_config, training

from phalanx.errors import ConfigError
from phalanx.train.background import BackgroundSaves
from phalanx.train.checkpoint import Checkpoint, save
from phalanx.train.data import open_corpus
from phalanx.train.fence import Fence
from phalanx.train.keeper import Keeper
from phalanx.train.rundir import RunDir

LIMIT_S = 60.0
REFUSAL = r"^cannot write checkpoint .*/step-00000002: File exists; earlier checkpoints are unchanged"


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run", "", {})


@pytest.fixture
def full(run):
    """A run whose checkpoints cannot be written."""
    run.checkpoints.write_bytes(b"")
    return run


class Gated(Keeper):
    """A keeper whose thread waits at a gate before it enters the fence for the ``number``-th time."""

    number = 1
    is_demoted = False

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.is_there, self.gate = threading.Event(), threading.Event()

    @property
    def _is_writer(self):
        return not self.is_demoted

    @contextmanager
    def _entering_as_first(self):
        if threading.current_thread() is not threading.main_thread():
            self.number -= 1
            if self.number == 0:
                self.is_there.set()
                assert self.gate.wait(LIMIT_S)
        with super()._entering_as_first() as may_write:
            yield may_write

    def open_gate(self):
        """Let the thread write, and raise its error if it has one."""
        self.gate.set()
        self._saves.wait()


@contextmanager
def keeping(run, config, kind=Keeper):
    """A keeper, and a trainer that is alone."""
    with training(config) as trainer, kind(run, config, open_corpus(config.data), trainer.exchange) as keeper:
        yield keeper, trainer


def take_step(trainer):
    """Take a step, and return its record."""
    report = trainer.engine.step(partial(trainer.lanes.batches, trainer.engine.step_number))
    return make_step(report.step)


def keep_steps(keeper, trainer, count, *, is_stopped=False):
    """Take steps and keep them. A checkpoint is due after the second one."""
    for number in range(count):
        keeper.keep(take_step(trainer), trainer.engine, is_last=is_stopped and number == count - 1)


def kept(run):
    return sorted(path.name for path in run.checkpoints.glob("*"))


def bytes_of(run):
    """All files of all checkpoints of a run."""
    return {path.relative_to(run.path): path.read_bytes() for path in run.checkpoints.glob("*/*")}


def test_a_checkpoint_has_the_bytes_of_its_step_though_later_steps_change_the_weights(run, tmp_path):
    config = make_config(tmp_path)
    expected = RunDir.create(tmp_path / "expected", "", {})
    with keeping(expected, config) as (keeper, trainer):
        keep_steps(keeper, trainer, 2, is_stopped=True)  # the last checkpoint is written at once

    with keeping(run, config, Gated) as (keeper, trainer):
        keep_steps(keeper, trainer, 3)
        take_step(trainer)
        before = kept(run)
        keeper.open_gate()

    assert (before, kept(run)) == ([], ["step-00000002"])
    assert bytes_of(run) == bytes_of(expected)


def test_a_checkpoint_that_cannot_be_written_is_an_error_at_the_next_step(full, tmp_path):
    with keeping(full, make_config(tmp_path)) as (keeper, trainer):
        keep_steps(keeper, trainer, 2)
        record = take_step(trainer)
        end = time.monotonic() + LIMIT_S
        while keeper._saves.is_busy:
            assert time.monotonic() < end, "that took too long"
            os.sched_yield()

        with pytest.raises(ConfigError, match=REFUSAL):
            keeper.keep(record, trainer.engine, is_last=False)


@pytest.mark.parametrize("end", [Keeper.conclude, Keeper.save_before_end, lambda *_: None])
def test_a_checkpoint_that_cannot_be_written_is_an_error_at_the_end(full, tmp_path, end):
    def fail():
        with keeping(full, make_config(tmp_path)) as (keeper, trainer):
            keep_steps(keeper, trainer, 2)
            end(keeper, trainer.engine)

    with pytest.raises(ConfigError, match=REFUSAL):
        fail()

    assert not full.result.exists()


def test_another_error_is_not_replaced_by_that_of_a_checkpoint(full, tmp_path):
    def fail():
        with keeping(full, make_config(tmp_path)) as (keeper, trainer):
            keep_steps(keeper, trainer, 2)
            raise KeyError("another")

    with pytest.raises(KeyError, match="another"):
        fail()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])  # before the draft is made, and before pruning
@pytest.mark.parametrize("end", [Keeper.conclude, Keeper.save_before_end, lambda *_: None])
def test_the_end_waits_for_the_checkpoint_that_is_being_written(run, tmp_path, end, number):
    has_result = []

    class Opening(BackgroundSaves):
        def wait(self):
            if self.is_busy:
                keeper.gate.set()
            super().wait()

    class Watching(Gated):
        def _prune(self, best):
            super()._prune(best)
            has_result.append(run.result.exists())

    with keeping(run, make_config(tmp_path), Watching) as (keeper, trainer):
        keeper.number, keeper._saves = number, Opening()
        keep_steps(keeper, trainer, 2)
        assert keeper.is_there.wait(LIMIT_S)
        end(keeper, trainer.engine)

    assert has_result[0] is False
    assert kept(run) == ["step-00000002"]


@pytest.mark.parametrize("number", [1, 2, 3])  # before the draft is made, before it is renamed, before pruning
@pytest.mark.parametrize("change", ["fenced", "demoted"])
def test_a_worker_that_no_longer_keeps_the_run_ends_its_checkpoint_quietly(run, tmp_path, number, change):
    save(run.checkpoints, Checkpoint(1, {}, {}))

    with keeping(run, make_config(tmp_path), Gated) as (keeper, trainer):
        keeper.number = number
        keep_steps(keeper, trainer, 2)
        assert keeper.is_there.wait(LIMIT_S)
        if change == "fenced":
            with Fence(run.fence) as later, later.enter(1) as may_write:
                assert may_write
        keeper.is_demoted = change == "demoted"
        keeper.open_gate()

    assert kept(run) == (["step-00000001", "step-00000002"] if number == 3 else ["step-00000001"])


def test_a_worker_whose_draft_another_worker_has_removed_ends_its_checkpoint_quietly(run, tmp_path):
    with keeping(run, make_config(tmp_path), Gated) as (keeper, trainer):
        keeper.number = 2
        keep_steps(keeper, trainer, 2)
        assert keeper.is_there.wait(LIMIT_S)
        with Fence(run.fence) as later, later.enter(1):
            save(run.checkpoints, Checkpoint(7, {}, {}))
        keeper.open_gate()

    assert kept(run) == ["step-00000007"]
