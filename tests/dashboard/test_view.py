import pytest

from phalanx.coordinator.events import CoordinatorStarted, EpochBegan, RunEnded, Seat, WorkerLost
from phalanx.dashboard.view import find_crew, make_feed, make_marks, measure_goodput
from phalanx.train.incidents import Incident


def begin(number, *, new=()):
    seats = tuple(Seat(rank, 100 + rank, "node", 2, rank in new) for rank in range(number))
    return EpochBegan(epoch=1, step=0, members=seats)


LOST = WorkerLost(rank=2, pid=102, host="node", words="its connection closed")


def states(*events):
    return [(each.rank, each.state) for each in find_crew(events)]


def test_a_lost_worker_shows_as_lost_until_another_one_came():
    assert states(begin(3), LOST) == [(0, "in"), (1, "in"), (2, "lost")]
    assert states(begin(3), LOST, begin(2)) == [(0, "in"), (1, "in"), (2, "lost")]
    assert states(begin(3), LOST, begin(2), begin(3, new=[2])) == [(0, "in"), (1, "in"), (2, "new")]


def test_a_lost_worker_is_told_by_its_process_when_its_rank_has_passed_to_another():
    lost = WorkerLost(rank=0, pid=100, host="node", words="")
    crew = find_crew([begin(3), lost, begin(2)])

    assert [(each.rank, each.pid, each.state) for each in crew] == [(0, 100, "in"), (1, 101, "in"), (0, 100, "lost")]


def test_a_run_that_was_started_again_has_lost_nobody():
    assert states(begin(3), LOST, CoordinatorStarted(is_restart=False, step=0), begin(2)) == [(0, "in"), (1, "in")]


def test_all_are_done_when_the_run_ended():
    assert states(begin(2), RunEnded(step=5, words="", has_halted=False)) == [(0, "done"), (1, "done")]


def incident(time, **more):
    return Incident(time=time, step=int(time), words="", **more)


def test_goodput_is_the_share_of_time_that_failures_and_newcomers_left():
    told = [incident(0, starts=1), incident(50, losses=1, recovery_s=5.0), incident(60, joins=1, stood_still_s=5.0)]

    assert measure_goodput(told, 100, is_over=False) == pytest.approx(0.9)


def test_time_between_two_starts_of_a_run_is_not_lost():
    told = [incident(0, starts=1), incident(50, ends=1), incident(1000, starts=1), incident(1050, ends=1)]

    assert measure_goodput(told, 2000, is_over=True) == 1


def test_a_run_without_events_has_no_goodput():
    assert measure_goodput([], 100, is_over=False) is None


def test_the_latest_comes_first_in_the_feed():
    assert [each.time for each in make_feed([incident(1), incident(2)])] == [2, 1]


def test_marks_are_few_however_many_checkpoints_there_are():
    marks = make_marks([incident(7, losses=1), incident(8)], range(0, 100_000, 10))

    assert [(each.step, each.kind) for each in marks[:1]] == [(7, "failure")]
    assert len(marks) <= 201
