"""A run that outlives its workers: the same bits, whoever dies on the way."""

import copy
import gc
import os
from collections import Counter

import pytest
from elastic_play import LANES, KillableCoordinator, Workers, calm, storm, story_of
from engine_play import batches_of, digest_of, make_engine, train

import phalanx
from phalanx.coordinator import Coordinator, Terms
from phalanx.group import alone
from phalanx.launch.resource_count import count_resources

STORMS = [
    ("arena", 0),
    *(pytest.param(over, seed, marks=pytest.mark.slow) for over, seed in (("arena", 1), ("tcp", 2), ("tcp", 3))),
]


def start_two(workers, coordinator, heard):
    """Start two workers, and return when they have taken some steps."""
    workers.start(coordinator.address)
    workers.start(coordinator.address)
    for said in workers.listen():
        heard.append(said)
        if said[1:3] == ("report", 3):
            return


@pytest.fixture(scope="module")
def undisturbed():
    return calm(steps=30)


@pytest.mark.parametrize(("over", "seed"), STORMS)
def test_whoever_is_killed_every_step_has_the_bits_of_a_calm_run(over, seed, undisturbed):
    heard = storm(seed, over=over)

    assert story_of(heard) == undisturbed
    assert len({epoch for _, what, _, epoch in heard if what == "epoch"}) > 4


@pytest.mark.slow
def test_epochs_that_are_over_keep_no_memory(tmp_path):
    def behind(_, run, report):
        gc.disable()  # in circles, gradients of all epochs would stay until it runs, which may be never
        if report.step == 29:
            (tmp_path / str(os.getpid())).write_text(f"{run.group.size} {count_resources(os.getpid()).segments}")

    storm(0, over="arena", behind=behind)

    found = {path.read_text() for path in tmp_path.iterdir()}
    assert len(found) == 1, "some have been there since the first epoch, and others came in the last one"


@pytest.mark.slow
def test_the_others_compute_only_the_lanes_that_are_lost():
    heard = []
    with Workers(4, steps=12) as workers, Coordinator(terms=Terms(minimum=3, maximum=4)) as coordinator:
        for _ in range(4):
            workers.start(coordinator.address)
        victim = stopped_at = None
        for said in workers.listen():
            heard.append(said)
            number, what, step, value = said
            is_settled = heard.count((number, what, step - 1, value)) == 1  # all began the step in this epoch
            if what == "epoch" and value[1:] == (3, 4) and is_settled and victim is None:
                victim, stopped_at = number, step
                workers.stop(victim)  # so that the others have computed a step and wait for it
            steps = Counter(step for number, what, step, _ in heard if what == "lane" and number != victim)
            if victim is not None and steps[max(steps)] >= 6:
                break
        workers.kill(victim)
        workers.listen_to_the_end(heard)

    lanes = Counter(
        (step, value)
        for number, what, step, value in heard
        if what == "lane" and number != victim and step > stopped_at
    )
    assert set(lanes.values()) == {1}
    assert {lane for step, lane in lanes if step == 11} == set(range(LANES))


def test_a_newcomer_gets_the_state_and_the_last_report_from_the_others():
    heard = []
    with Workers(3, steps=30) as workers, Coordinator(terms=Terms(minimum=2, maximum=3)) as coordinator:
        start_two(workers, coordinator, heard)
        newcomer = workers.start(coordinator.address)
        workers.listen_to_the_end(heard)

    story = story_of(heard)
    first = next(step for number, what, step, _ in heard if number == newcomer and what == "report")
    assert first >= 3
    assert {what for number, what, _, _ in heard if number == newcomer} >= {"report", "lane", "end"}
    assert story["end", 30] == calm(steps=30)["end", 30]


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
def test_a_worker_that_was_stopped_and_given_up_comes_back_and_harms_nothing(zero):
    heard = []
    with (
        Workers(3, steps=40, stall_s=0.5, zero=zero) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=3, stall_s=0.5)) as coordinator,
    ):
        for _ in range(3):
            workers.start(coordinator.address)
        stopped = None
        for said in workers.listen():
            heard.append(said)
            number, what, step, value = said
            if what == "epoch" and step == 5 and value[1] == 0 and stopped is None:
                stopped = number
                workers.stop(stopped)
            if stopped is not None and what == "epoch" and value[2] == 2 and step >= 7:
                break
        workers.resume(stopped)
        workers.listen_to_the_end(heard)

    assert story_of(heard)["end", 40] == calm(steps=40)["end", 40]
    assert (stopped, "end") in {said[:2] for said in heard}


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
def test_workers_go_on_when_their_coordinator_is_killed_and_started_again_on_its_journal(zero, tmp_path):
    heard = []
    terms = Terms(minimum=2, maximum=3, patience_s=1.0)
    with (
        Workers(3, steps=40, zero=zero) as workers,
        KillableCoordinator(terms, tmp_path / "journal") as coordinator,
    ):
        for _ in range(3):
            workers.start(coordinator.address)
        kills = {4, 11, 18}
        for said in workers.listen():
            heard.append(said)
            if said[1] == "lane" and said[2] in kills:  # in the middle of a step
                kills.discard(said[2])
                coordinator.kill_and_start_again()
            if not kills:
                break
        workers.listen_to_the_end(heard)

    assert story_of(heard) == calm(steps=40)


@pytest.mark.parametrize("zero", [False, True])
def test_a_run_goes_on_from_a_state_that_was_loaded_before_its_first_step(zero):
    with alone(lanes=LANES) as group:
        plain = make_engine(group)
        train(plain, 3)
        state = copy.deepcopy(plain.state())
        train(plain, 2)
        expected = digest_of(plain)

    with phalanx.join_run(lanes=LANES, step=3) as run:
        engine = make_engine(run, seed=8, zero=zero)  # other weights than those that are loaded
        engine.load_state(state, 3)
        reports = list(engine.train(lambda step, lane: batches_of(step)(lane), 5))

    assert [each.step for each in reports] == [3, 4]
    assert digest_of(engine) == expected


@pytest.mark.slow
def test_a_newcomer_with_another_model_is_refused_in_words_and_the_others_go_on():
    heard = []
    with Workers(3, steps=30) as workers, Coordinator(terms=Terms(minimum=2, maximum=3)) as coordinator:
        start_two(workers, coordinator, heard)
        other = workers.start(coordinator.address, hidden=41)
        workers.listen_to_the_end(heard)

    (words,) = [value for number, what, _, value in heard if number == other and what == "error"]
    assert "rank 0 has parameter sometimes of [40] float32, where rank 2 has parameter sometimes of [41]" in words
    assert story_of([said for said in heard if said[0] != other])["end", 30] == calm(steps=30)["end", 30]
