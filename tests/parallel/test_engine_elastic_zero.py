"""A run that outlives its workers although they share the optimizer: two hold each part of its state."""

from itertools import product

import pytest
from elastic_play import Workers, calm, last_report, storm, story_of

from phalanx.coordinator import Coordinator, Terms

STEPS = 30
STORMS = [
    ("arena", 0),
    ("hosts", 0),
    *(
        pytest.param(over, seed, marks=pytest.mark.slow)
        for over, seed in product(("arena", "tcp", "hosts"), range(1, 4))
    ),
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
@pytest.mark.parametrize("over", ["arena", "tcp"])
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


@pytest.mark.parametrize("point", ["update", "all-gather", "arrival"])
def test_a_member_may_die_when_its_step_counts_and_its_weights_have_not_come(point, undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, zero=True) as workers,
        Coordinator(terms=Terms(minimum=3, maximum=4)) as coordinator,
    ):
        dying = workers.start(coordinator.address, dies_in=point)
        for _ in range(3):
            workers.start(coordinator.address)
        workers.wait_for_death(dying)
        workers.listen_to_the_end(heard)

    assert story_of(heard) == undisturbed


@pytest.mark.parametrize("point", ["sending", "comparison", "dropping"])
def test_a_member_may_die_while_it_hands_state_over_to_a_newcomer(point, undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, zero=True) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=4)) as coordinator,
    ):
        dying = workers.start(coordinator.address, dies_in=point)
        for _ in range(2):
            workers.start(coordinator.address)
        listen_until(workers, heard, 4)
        workers.start(coordinator.address)
        workers.wait_for_death(dying)
        workers.listen_to_the_end(heard)

    assert story_of(heard) == undisturbed


@pytest.mark.parametrize("point", ["receiving", "comparison", "dropping"])
def test_a_newcomer_may_die_while_it_gets_its_state(point, undisturbed):
    heard = []
    with (
        Workers(5, steps=STEPS, zero=True) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=4)) as coordinator,
    ):
        for _ in range(3):
            workers.start(coordinator.address)
        listen_until(workers, heard, 4)
        dying = workers.start(coordinator.address, dies_in=point)
        workers.wait_for_death(dying)
        workers.start(coordinator.address)
        workers.listen_to_the_end(heard)

    assert story_of(heard) == undisturbed


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
