"""Checkpoints of an engine: whatever trains on from one has the bits of a run that never stopped."""

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from elastic_play import Workers, calm, storm, story_of
from engine_play import LANES, Toy, batches_of, digest_of, make_engine, train
from spread import of_all, spread

import phalanx
from phalanx.checkpoint import Checkpoint, find_checkpoints, latest_step, load, save
from phalanx.checkpoint.draft import Draft
from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, WeightsDiverged
from phalanx.group import alone


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def expected():
    """The digest after five steps."""

    def work(group):
        engine = make_engine(group)
        train(engine, 5)
        return digest_of(engine)

    return of_all(spread(1, work))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("zero", [False, True])
def test_a_run_goes_on_from_its_checkpoint_on_any_number_of_ranks(sizes, zero, expected, tmp_path):
    def first(group):
        engine = make_engine(group, zero=zero)
        engine.extra["best"] = [0.25, np.arange(3)]
        assert not engine.load(tmp_path)
        train(engine, 3)
        return str(engine.save(tmp_path))

    def second(group):
        engine = make_engine(group, zero=zero, seed=8)  # other weights than those that are loaded
        named = engine.extra
        assert engine.load(str(tmp_path))
        assert engine.step_number == 3
        assert named["best"][1].tolist() == [0, 1, 2]
        train(engine, 2)
        return digest_of(engine)

    assert of_all(spread(sizes[0], first)) == str(tmp_path / "step-00000003")
    assert of_all(spread(sizes[1], second)) == expected
    assert names(tmp_path) == ["step-00000003"]
    assert latest_step(tmp_path) == 3


def test_a_folder_gives_its_latest_checkpoint_and_a_path_the_one_that_it_names(tmp_path):
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        for _ in range(3):
            train(engine, 1)
            engine.save(tmp_path)
        late, early = make_engine(group), make_engine(group)
        late.load(tmp_path)
        early.load(tmp_path / "step-00000002")

    assert (late.step_number, early.step_number) == (3, 2)
    assert digest_of(late) == digest_of(engine)


def test_an_optimizer_without_state_is_saved_too(tmp_path):
    with alone(lanes=LANES) as group:
        engine = make_engine(group, optimizer=torch.optim.SGD)
        train(engine, 1)
        engine.save(tmp_path)

        assert make_engine(group, optimizer=torch.optim.SGD).load(tmp_path)
        with pytest.raises(ConfigError, match="the checkpoint of step 1 is of another model: "):
            make_engine(group, optimizer=torch.optim.SGD, model=lambda: Toy(41)).load(tmp_path)


def test_a_disk_that_is_full_is_the_same_error_on_all_ranks_and_they_can_go_on(tmp_path):
    def work(group):
        engine = make_engine(group)
        train(engine, 1)
        if group.rank == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        with pytest.raises(ConfigError) as caught:
            engine.save(tmp_path)
        if group.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        train(engine, 1)
        engine.save(tmp_path)
        return str(caught.value)

    words = of_all(spread(3, work))

    assert words.startswith(f"rank 0 cannot write checkpoint {tmp_path}/step-00000001: File too large; ")
    assert names(tmp_path) == ["step-00000002"]


def test_ranks_whose_state_differs_save_nothing(tmp_path):
    def work(group):
        engine = make_engine(group)
        train(engine, 1)
        with torch.no_grad():
            engine.model.last.bias += group.rank
        with pytest.raises(WeightsDiverged):
            engine.save(tmp_path)
        return True

    spread(2, work)

    assert names(tmp_path) == []


def test_ranks_that_see_different_folders_are_told(tmp_path):
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        train(engine, 1)
        engine.save(tmp_path / "0")

    def work(group):
        with pytest.raises(ConfigError) as caught:
            make_engine(group).load(tmp_path / str(min(group.rank, 1)))
        return str(caught.value)

    words = of_all(spread(3, work))

    assert words == "rank 0 would load step 1, and rank 1 step 0: all ranks must see one folder"


def spoil(path):
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)


def test_checkpoints_that_cannot_be_used_are_refused_in_words(tmp_path):
    save(tmp_path / "other", Checkpoint(1, {"weights": {"a": torch.ones(1)}}, {}))
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        train(engine, 1)
        spoil(engine.save(tmp_path / "spoilt"))
        engine.save(tmp_path / "good")
        wider = make_engine(group, model=lambda: torch.nn.Linear(3, 3))

        with pytest.raises(ConfigError, match="has weights: an engine did not save it"):
            engine.load(tmp_path / "other")
        with pytest.raises(ConfigError, match=r"is damaged: .*; remove it, or load another one by its path"):
            engine.load(tmp_path / "spoilt")
        with pytest.raises(ConfigError, match="which this model has not"):
            wider.load(tmp_path / "good")


def test_an_extra_that_cannot_be_kept_is_refused_before_the_step_counts():
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        engine.extra["when"] = object()

        with pytest.raises(ConfigError, match=r"engine.extra\['when'\] is of type object"):
            engine.step(batches_of(0))

        assert engine.step_number == 0


def test_an_elastic_run_goes_on_from_its_checkpoint(expected, tmp_path):
    torch.set_num_threads(1)
    with phalanx.join_run(lanes=LANES) as run:
        engine = make_engine(run)
        for report in engine.train(lambda step, lane: batches_of(step)(lane), 3):
            engine.extra["last"] = report.step
        engine.save(tmp_path)

    with phalanx.join_run(lanes=LANES, step=latest_step(tmp_path)) as run:
        engine = make_engine(run, seed=8)
        assert engine.load(tmp_path)
        assert engine.extra == {"last": 2}
        reports = list(engine.train(lambda step, lane: batches_of(step)(lane), 5))
        with pytest.raises(ConfigError, match="load before the first step"):
            engine.load(tmp_path)

    assert [each.step for each in reports] == [3, 4]
    assert digest_of(engine) == expected


def test_a_worker_that_joined_at_another_step_than_it_loads_is_told_what_to_do(tmp_path):
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        train(engine, 3)
        engine.save(tmp_path)

    with (
        phalanx.join_run(lanes=LANES) as run,
        pytest.raises(ConfigError, match=r"joined at step 0, and would load step 3"),
    ):
        make_engine(run).load(tmp_path)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def finish_and_die(draft, entries, finish=Draft.finish):
    finish(draft, entries)
    die()


def stop_and_finish(draft, entries, finish=Draft.finish):
    os.kill(os.getpid(), signal.SIGSTOP)
    finish(draft, entries)


def spoil_save(owner, name, instead, folder, victim):
    """What workers do behind a step: they save in steps 4 and 7, and the first to write does something else instead.

    The file ``victim`` then has its process.
    """

    def behind(engine, run, report):
        if report.step == 4 and run.group.rank == 0:
            victim.write_text(str(os.getpid()))
            setattr(owner, name, instead)
        if report.step in (4, 7):
            engine.save(folder)

    return behind


def spoilt_run(workers, coordinator, victim, heard):
    """Start three workers, and return the number of the victim when the others have gone on without it."""
    for _ in range(3):
        workers.start(coordinator.address)
    for said in workers.listen():
        heard.append(said)
        if said[1] == "lane" and said[2] >= 6:
            break
    return next(number for number, pid in workers.pids.items() if pid == int(victim.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (Draft, "begin", die),
        (Draft, "write", die),
        (Draft, "finish", die),
        (Path, "rename", die),
        (Draft, "finish", finish_and_die),
    ],
)
def test_if_the_member_that_writes_dies_the_others_save_the_checkpoint_and_go_on(owner, name, instead, tmp_path):
    heard, folder, victim = [], tmp_path / "saved", tmp_path / "victim"
    behind = spoil_save(owner, name, instead, folder, victim)
    with (
        Workers(3, steps=10, behind=behind) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=3)) as coordinator,
    ):
        workers.kill(spoilt_run(workers, coordinator, victim, heard))  # it is dead already
        workers.listen_to_the_end(heard)

    assert story_of(heard) == calm(steps=10)
    assert names(folder) == ["step-00000005", "step-00000008"]
    assert [load(path).step for path in find_checkpoints(folder).values()] == [5, 8]


@pytest.mark.slow
def test_a_member_that_was_stopped_while_it_wrote_harms_no_checkpoint_and_comes_back(tmp_path):
    heard, folder, victim = [], tmp_path / "saved", tmp_path / "victim"
    behind = spoil_save(Draft, "finish", stop_and_finish, folder, victim)
    with (
        Workers(3, steps=40, stall_s=0.5, behind=behind) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=3, stall_s=0.5)) as coordinator,
    ):
        workers.resume(spoilt_run(workers, coordinator, victim, heard))
        workers.listen_to_the_end(heard)

    assert story_of(heard) == calm(steps=40)
    assert names(folder) == ["step-00000005", "step-00000008"]
    assert [load(path).step for path in find_checkpoints(folder).values()] == [5, 8]


def test_a_writer_that_was_given_up_does_not_take_its_successors_draft_for_its_own(tmp_path):
    files = {"model": {"a": torch.ones(2)}}
    old, new = Draft(tmp_path, 1, number=1), Draft(tmp_path, 1, number=2)
    old.begin()
    entries = old.write(files, {})
    new.begin()

    with pytest.raises(OSError, match="No such file"):
        old.finish(entries)

    assert find_checkpoints(tmp_path) == {}
    new.finish(new.write(files, {}))
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_whoever_is_killed_every_checkpoint_is_whole(seed, tmp_path):
    heard = storm(seed, over="arena", behind=lambda engine, *_: engine.save(tmp_path))

    assert story_of(heard) == calm(steps=30)
    assert [load(path).step for path in find_checkpoints(tmp_path).values()] == list(range(1, 31))
