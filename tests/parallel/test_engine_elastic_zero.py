"""A run that outlives its workers although they share the optimizer: two hold each part of its state."""

import os
import signal
from contextlib import suppress
from itertools import islice

import pytest
import torch
from elastic_play import LANES, KillableCoordinator, Workers, calm, last_report, storm, story_of
from engine_play import digest_of, make_engine, train

import phalanx
from phalanx.checkpoint import Checkpoint, RemoteShards, find_checkpoints, save_together
from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, TransportError
from phalanx.group import alone

STEPS = 30
STORMS = [
    ("arena", 0),
    ("hosts", 0),
    *(pytest.param(over, seed, marks=pytest.mark.slow) for over, seed in (("arena", 1), ("tcp", 2), ("hosts", 3))),
]


@pytest.fixture(scope="module")
def undisturbed():
    return calm(steps=STEPS)


def listen_until(workers, heard, step):
    """Return when a worker has reported ``step``."""
    for said in workers.listen():
        heard.append(said)
        if said[1] == "report" and said[2] >= step:
            return


@pytest.mark.parametrize(("over", "seed"), STORMS)
def test_whoever_is_killed_every_step_has_the_bits_of_a_calm_run_without_zero(over, seed, undisturbed):
    heard = storm(seed, over=over, zero=True)

    assert story_of(heard) == undisturbed
    assert len({epoch for _, what, _, epoch in heard if what == "epoch"}) > 4


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("over", ["arena", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_lost_member_takes_no_state_with_it(rank, over, undisturbed):
    heard = []
    with (
        Workers(3, steps=STEPS, over=over, zero=True) as workers,
        Coordinator(terms=Terms(minimum=1, maximum=3)) as coordinator,
    ):
        for _ in range(3):
            workers.start(coordinator.address)
        for said in workers.listen():
            heard.append(said)
            number, what, _, value = said
            if what == "epoch" and value[1:] == (rank, 3):
                break
        workers.kill(number)
        workers.listen_to_the_end(heard)

    assert story_of(heard) == undisturbed


@pytest.mark.slow
def test_one_after_another_all_but_the_last_may_die(undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, zero=True) as workers,
        Coordinator(terms=Terms(minimum=1, maximum=4)) as coordinator,
    ):
        for _ in range(4):
            workers.start(coordinator.address)
        for _ in range(3):
            listen_until(workers, heard, last_report(heard) + 4)
            workers.kill(min(workers.pids))
            workers.catch_up(heard)
        workers.listen_to_the_end(heard)

    assert story_of(heard) == undisturbed


@pytest.mark.slow
def test_a_whole_host_may_die_if_there_is_another(undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, over="hosts", zero=True) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=4)) as coordinator,
    ):
        for _ in range(4):
            workers.start(coordinator.address)
        for said in workers.listen():
            heard.append(said)
            if said[1] == "epoch" and said[3][2] == 4:
                break
        for number in (0, 2):
            workers.kill(number)
        workers.listen_to_the_end(heard)

    assert story_of(heard) == undisturbed


@pytest.mark.slow
def test_a_newcomer_without_zero_is_refused_in_words_and_the_others_go_on(undisturbed):
    heard = []
    with (
        Workers(3, steps=STEPS, zero=True) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=3)) as coordinator,
    ):
        workers.start(coordinator.address)
        workers.start(coordinator.address)
        listen_until(workers, heard, 4)
        other = workers.start(coordinator.address, zero=False)
        workers.listen_to_the_end(heard)

    (words,) = [value for number, what, _, value in heard if number == other and what == "error"]
    assert "rank 0 has zero=True, where rank 2 has zero=False: give all workers the same" in words
    assert story_of([said for said in heard if said[0] != other]) == undisturbed


@pytest.mark.slow
def test_any_checkpoint_of_a_stormy_run_has_all_state_and_can_be_continued_by_one_worker_without_zero(
    undisturbed, tmp_path
):
    heard = storm(0, over="arena", zero=True, behind=lambda engine, *_: engine.save(tmp_path))

    assert story_of(heard) == undisturbed
    found = find_checkpoints(tmp_path)
    assert list(found) == list(range(1, STEPS + 1))
    for step in (5, 12, 19, 26):
        with alone(lanes=LANES) as group:
            engine = make_engine(group, seed=8)
            engine.load(found[step])
            train(engine, STEPS - step)
            assert digest_of(engine) == undisturbed["end", STEPS]


@pytest.mark.slow
@pytest.mark.parametrize("over", ["arena", "hosts"])
@pytest.mark.parametrize("dying", [0, 1])
def test_members_whose_coordinator_stays_away_save_together_if_all_are_there(over, dying, undisturbed, tmp_path):
    pid, folder = tmp_path / "pid", tmp_path / "checkpoints"

    def kill_coordinator(_engine, run, report):
        if report.step == 9:
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
            if dying and run.group.rank == 2:
                os._exit(0)

    def save(engine, run):
        try:
            engine.meet_once_more(30.0 if not dying else 2.0)
        except TransportError:
            return "no"
        state, guests = engine.state(), RemoteShards(run.group, range(1, 3))
        checkpoint = Checkpoint(engine.step_number, {"model": state["model"]}, {})
        save_together(folder, checkpoint, state["optimizer"], run.group, remote=guests)
        return "saved"

    with (
        Workers(3, steps=STEPS, over=over, zero=True, behind=kill_coordinator, forsaken=save) as workers,
        KillableCoordinator(Terms(minimum=3, maximum=3, patience_s=0.3), tmp_path / "journal") as coordinator,
    ):
        pid.write_text(str(coordinator.pid))
        for _ in range(3):
            workers.start(coordinator.address)
        ends = islice((said for said in workers.listen() if said[1] in ("forsaken", "error")), 3 - dying)
        said = [(what, value) for _, what, _, value in ends]

    if dying:
        assert said == [("forsaken", "no")] * 2
        return
    assert said == [("forsaken", "saved")] * 3
    ((step, path),) = find_checkpoints(folder).items()
    with alone(lanes=LANES) as group:
        engine = make_engine(group, seed=8)
        engine.load(path)
        train(engine, STEPS - step)
        assert digest_of(engine) == undisturbed["end", STEPS]


def test_a_shard_is_refused_by_a_member_that_holds_more():
    with phalanx.join_run(lanes=LANES) as run:
        engine = make_engine(run, zero=True)
        state = {**engine.state(), "shard": {"rank": torch.tensor(0), "size": torch.tensor(3)}}

        with pytest.raises(ConfigError, match=r"shard of rank 0 of 3, and this is rank 0 of 1 that share one"):
            engine.load_state(state, 1)


def test_all_halt_if_both_holders_of_some_state_die_at_once():
    heard = []
    with (
        Workers(4, steps=1000, zero=True) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=4)) as coordinator,
    ):
        for _ in range(4):
            workers.start(coordinator.address)
        held, sizes = {}, {}
        for number, what, _, value in workers.listen():
            if what == "held":
                held[number] = value
            if what == "epoch":
                sizes[number] = value[2]
            if list(sizes.values()) == [4] * 4:
                break
        victims = [number for number in held if 0 in held[number]]
        others = workers.pids.keys() - victims
        for number in others:
            workers.stop(number)  # so that they cannot hand anything over between the two deaths
        for number in victims:
            workers.kill(number)
        for number in others:
            workers.resume(number)
        workers.listen_to_the_end(heard)

    errors = [value for _, what, _, value in heard if what == "error"]
    assert len(victims) == len(errors) == 2
    for words in errors:
        assert words.startswith("StateLost: the optimizer state of ")
        assert "because all workers that held it are gone: start all workers again from the last checkpoint" in words
