"""Workers that are killed at each point of a step and of a transfer: the others take every step once, in order."""

from collections import Counter
from itertools import product

import pytest
from elastic_play import Workers, calm, last_report, story_of
from killing_points import STEP

from phalanx.coordinator import Coordinator, Terms

STEPS = 29  # behind the last one, all compare their weights and their optimizer state
IN_A_STEP = ["before-first-bucket", "between-buckets", "in-fold", "before-done", "after-done"]
BEHIND_A_COMMIT = ["after-commit", "in-optimizer"]
IN_THE_ALL_GATHER = ["before-all-gather", "in-all-gather"]
AS_DONOR = ["sending-weights", "before-sending-state", "sending-state"]
AS_JOINER = ["receiving-weights", "before-receiving-state", "receiving-state"]
AS_EITHER = ["comparison", "dropping"]
POINTS = [
    pytest.param(
        zero, point, marks=() if (zero, point) in [(False, "in-fold"), (True, "in-optimizer")] else pytest.mark.slow
    )
    for zero, point in [
        *product([False], IN_A_STEP + BEHIND_A_COMMIT),
        *product([True], BEHIND_A_COMMIT + IN_THE_ALL_GATHER),
    ]
]
OVER = ["arena", pytest.param("tcp", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def undisturbed():
    return calm(steps=STEPS)


def listen_until(workers, heard, step):
    """Return when a worker has reported ``step``."""
    for said in workers.listen():
        heard.append(said)
        if last_report(heard) >= step:
            return


def check(heard, workers, undisturbed):
    """Check that the workers that are left took every step once and in order, with the bits of a calm run."""
    assert story_of(heard) == undisturbed
    assert ("state", STEPS - 1) in undisturbed
    for number in workers.pids:
        steps = [step for worker, what, step, _ in heard if worker == number and what == "report"]
        assert steps == list(range(steps[0], STEPS))


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize(("zero", "point"), POINTS)
def test_a_worker_may_die_at_any_point_of_a_step(zero, point, over, undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, over=over, zero=zero) as workers,
        Coordinator(terms=Terms(minimum=1, maximum=4, first=4)) as coordinator,
    ):
        dying = workers.start(coordinator.address, dies_at=point)
        for _ in range(3):
            workers.start(coordinator.address)
        workers.wait_for_death(dying)
        workers.listen_to_the_end(heard)

        check(heard, workers, undisturbed)
    assert last_report([said for said in heard if said[0] == dying]) == STEP - 1
    lanes = Counter((worker, step, lane) for worker, what, step, lane in heard if what == "lane")
    assert set(lanes.values()) == {1}, "a worker computed a lane again that it had"


@pytest.mark.slow
def test_what_a_paranoid_worker_has_kept_outlives_a_second_death_before_it_is_used(undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, paranoid=True) as workers,
        Coordinator(terms=Terms(minimum=1, maximum=4, first=4)) as coordinator,
    ):
        workers.start(coordinator.address, dies_at="before-done")
        for _ in range(3):
            workers.start(coordinator.address, dies_at="comparison-again")  # which one of them does
        for _ in range(2):
            workers.wait_for_a_death()
        workers.listen_to_the_end(heard)

        check(heard, workers, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("over", "zero"), [("arena", False), ("tcp", True)])
@pytest.mark.parametrize("point", [*AS_DONOR, *AS_EITHER])
def test_a_worker_may_die_while_it_hands_its_state_to_a_newcomer(zero, point, over, undisturbed):
    heard = []
    with (
        Workers(4, steps=STEPS, over=over, zero=zero) as workers,
        Coordinator(terms=Terms(minimum=1, maximum=4, first=3)) as coordinator,
    ):
        dying = workers.start(coordinator.address, dies_at=point)
        for _ in range(2):
            workers.start(coordinator.address)
        listen_until(workers, heard, 4)
        workers.start(coordinator.address)
        workers.wait_for_death(dying)
        workers.listen_to_the_end(heard)

        check(heard, workers, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("over", "zero"), [("arena", False), ("tcp", True)])
@pytest.mark.parametrize("point", [*AS_JOINER, *AS_EITHER])
def test_a_newcomer_may_die_while_it_gets_its_state(zero, point, over, undisturbed):
    heard = []
    with (
        Workers(5, steps=STEPS, over=over, zero=zero) as workers,
        Coordinator(terms=Terms(minimum=1, maximum=5, first=3)) as coordinator,
    ):
        for _ in range(3):
            workers.start(coordinator.address)
        listen_until(workers, heard, 4)
        dying = workers.start(coordinator.address, dies_at=point)
        workers.start(coordinator.address)
        workers.wait_for_death(dying)
        workers.listen_to_the_end(heard)

        check(heard, workers, undisturbed)
