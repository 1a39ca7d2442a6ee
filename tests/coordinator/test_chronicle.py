"""Which events of a run are written down."""

import pytest
from coordinator_play import LANES, Chronicled, plain_hello, run_hello

from phalanx.coordinator.events import (
    Admitted,
    CoordinatorStarted,
    EpochBegan,
    EpochEnded,
    Recovered,
    RunEnded,
    Seat,
    WorkerCame,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)
from phalanx.coordinator.record import Past
from phalanx.wire import Cause, Commit, Failed, Halt, Leave, Reason, Welcome


def worker(number):
    """What the worker behind connection 10 + number says."""
    return run_hello(f"anvil{number}:7:ab")


def run_of(size, least=None, most=None):
    """A run in its first epoch, where rank r, on the host anvil r, is behind connection 10 + r."""
    names = frozenset(worker(rank).name for rank in range(size))
    play = Chronicled(least or size, most or size, past=Past(lanes=LANES, names=names))
    for rank in range(size):
        play.say(10 + rank, worker(rank))
    return play


def calm(size, least=None, most=None):
    """The same after its first step, when nothing is expected any more."""
    play = run_of(size, least, most)
    play.finish_step(*range(10, 10 + size))
    play.take()
    return play


def kinds(events):
    return [type(event) for event in events]


def test_a_run_begins_with_its_coordinator_its_workers_and_an_epoch():
    play = run_of(2)

    assert play.take() == [
        CoordinatorStarted(is_restart=False, step=0),
        WorkerCame(rank=None, pid=7, host="anvil0"),
        WorkerCame(rank=None, pid=7, host="anvil1"),
        EpochBegan(
            epoch=1, step=0, members=(Seat(0, 7, "anvil0", 4, is_new=False), Seat(1, 7, "anvil1", 4, is_new=False))
        ),
    ]


def test_steps_without_an_incident_make_no_events():
    play = run_of(3)
    play.take()

    for _ in range(20):
        play.finish_step(10, 11, 12)

    assert play.take() == []


def test_a_loss_is_told_with_the_time_to_the_next_epoch_and_to_the_next_commit():
    play = calm(3, least=2)
    play.now = 100.0

    play.hang_up(11)
    play.now = 100.5
    play.finish_step(10, 12)

    assert play.take() == [
        WorkerLost(rank=1, pid=7, host="anvil1", words="its connection closed (it hung up)"),
        EpochEnded(
            epoch=1,
            cause="lost",
            rank=1,
            words="rank 1 went away: its connection to the coordinator closed; rank 1 is process 7 on anvil1",
        ),
        EpochBegan(
            epoch=2, step=1, members=(Seat(0, 7, "anvil0", 4, is_new=False), Seat(1, 7, "anvil2", 4, is_new=False))
        ),
        Recovered(epoch=2, step=1, lost=1, members=2, epoch_s=0.0, commit_s=0.5),
    ]


def test_a_recovery_counts_from_the_first_loss_and_includes_those_that_follow():
    play = calm(4, least=3, most=4)
    play.now = 100.0
    play.hang_up(13)
    play.now = 101.0
    play.hang_up(12)  # two are too few
    play.now = 103.0
    play.say(20, worker(5))
    play.now = 104.0
    play.finish_step(10, 11, 20)

    events = play.take()

    assert [event.rank for event in events if isinstance(event, WorkerLost)] == [3, 2]
    assert events[-2:] == [
        Recovered(epoch=3, step=1, lost=2, members=3, epoch_s=3.0, commit_s=4.0),
        Admitted(epoch=3, step=1, newcomers=(Seat(2, 7, "anvil5", 2, is_new=True),), members=3, stood_still_s=1.0),
    ]


def test_only_the_first_commit_after_a_loss_is_told():
    play = calm(3, least=2)
    play.hang_up(11)
    play.finish_step(10, 12)
    play.take()

    play.finish_step(10, 12)

    assert play.take() == []


def test_a_newcomer_is_told_with_how_long_the_others_stood_still():
    play = calm(2, least=2, most=3)
    play.say(20, worker(5))
    play.now = 50.0
    play.finish_step(10, 11)
    play.now = 53.0
    play.finish_step(10, 11, 20)

    assert kinds(events := play.take()) == [WorkerCame, EpochBegan, Admitted]
    newcomer = Seat(2, 7, "anvil5", 2, is_new=True)
    assert events[1].members[2] == newcomer
    assert events[2] == Admitted(epoch=2, step=2, newcomers=(newcomer,), members=3, stood_still_s=3.0)


def test_a_newcomer_is_new_only_once():
    play = calm(2, least=2, most=4)
    play.say(20, worker(5))
    play.finish_step(10, 11)
    play.finish_step(10, 11, 20)
    play.say(21, worker(6))
    play.finish_step(10, 11, 20)
    play.finish_step(10, 11, 20, 21)

    admitted = [event.newcomers for event in play.take() if isinstance(event, Admitted)]

    assert [[seat.host for seat in newcomers] for newcomers in admitted] == [["anvil5"], ["anvil6"]]


def test_a_newcomer_whose_first_epoch_ends_early_is_admitted_in_the_next():
    play = calm(2, least=1, most=3)
    play.say(20, worker(5))
    play.finish_step(10, 11)
    play.hang_up(11)
    play.finish_step(10, 20)

    recovered, admitted = play.take()[-2:]

    assert kinds([recovered, admitted]) == [Recovered, Admitted]
    assert admitted.newcomers == (Seat(1, 7, "anvil5", 4, is_new=False),)


def test_a_worker_that_was_evicted_is_not_lost_once_more():
    play = calm(3, least=2)

    play.say(10, Failed(1, Cause.GARBLED, 2, "rank 2 sent bytes that are no frame"))
    play.hang_up(12)

    evicted, *rest = play.take()
    words = "rank 2 sent bytes that are no frame"
    assert evicted == WorkerEvicted(rank=2, pid=7, host="anvil2", words=words)
    assert kinds(rest) == [EpochEnded, EpochBegan]


def test_a_worker_that_talks_nonsense_is_told_as_evicted():
    play = calm(3, least=2)

    play.say(12, Commit(5, b""))

    assert play.take()[0].words.startswith("rank 2 was sent away for what it sent: ")


def test_a_worker_that_leaves_is_no_loss_and_the_others_recover_from_it():
    play = calm(3, least=2)

    play.say(12, Leave())
    play.hang_up(12)
    play.wait(1.0)
    play.finish_step(10, 11)

    left, ended, _, recovered = play.take()
    assert left == WorkerLeft(rank=2, pid=7, host="anvil2")
    assert ended.cause == "left"
    assert (recovered.lost, recovered.members) == (1, 2)


def test_a_worker_that_waited_and_went_has_no_rank():
    play = calm(2)
    play.say(20, worker(5))
    play.hang_up(20)
    play.hang_up(11)
    play.say(21, worker(6))
    play.finish_step(10, 21)

    events = play.take()
    (recovered,) = (event for event in events if isinstance(event, Recovered))
    assert recovered.lost == 1
    assert events[1] == WorkerLost(rank=None, pid=7, host="anvil5", words="its connection closed (it hung up)")


def test_a_worker_that_was_refused_makes_no_event():
    play = calm(2)

    play.say(20, run_hello("anvil5:7:ab", lanes=3))
    play.hang_up(20)

    assert play.take() == []


def test_a_restarted_coordinator_says_so_and_when_the_next_step_counted():
    names = frozenset(worker(rank).name for rank in range(2))
    play = Chronicled(2, past=Past(epoch=5, step=40, lanes=LANES, names=names, last=Commit(39, b"same")), now=10.0)

    play.now = 11.0
    for rank in range(2):
        play.say(10 + rank, run_hello(worker(rank).name, step=39, pending=b"same"))
    play.now = 12.0
    play.finish_step(10, 11)

    assert play.events[0] == CoordinatorStarted(is_restart=True, step=40)
    assert not any(seat.is_new for seat in play.events[-2].members)
    assert play.events[-1] == Recovered(epoch=6, step=40, lost=0, members=2, epoch_s=1.0, commit_s=2.0)


def test_a_commit_that_a_worker_had_missed_is_not_the_end_of_a_recovery():
    past = Past(epoch=5, step=40, lanes=LANES, names=frozenset(), last=Commit(39, b"same"))
    play = Chronicled(2, 3, past=past)
    for rank in range(2):
        play.say(10 + rank, run_hello(worker(rank).name, step=40))
    play.take()

    play.say(12, run_hello(worker(2).name, step=39, pending=b"same"))

    assert kinds(play.take()) == [WorkerCame]


def test_the_end_of_a_run_is_told_once_and_nobody_is_lost_after_it():
    play = calm(2)
    play.say(10, Leave())
    play.say(11, Leave())

    ended = [*play.end(), *play.end()]

    assert kinds(play.take()) == [WorkerLeft, WorkerLeft]
    assert ended == [RunEnded(step=1, words="all workers left it at step 1", has_halted=False)]


def test_workers_that_go_after_a_halt_are_not_lost_and_end_no_epoch():
    play = calm(2)
    play.say(10, Halt(1, Reason.NON_FINITE, 0, "a gradient is not finite", epoch=1))

    (ended,) = play.end()
    play.hang_up(10)
    play.hang_up(11)

    assert (ended.step, ended.has_halted) == (1, True)
    assert ended.words.startswith("a gradient is not finite")
    assert play.take() == []


def test_a_plain_group_has_epochs_and_losses_but_nobody_joins_or_recovers():
    play = Chronicled(2)
    for connection in (10, 11):
        play.say(connection, plain_hello())
    play.hang_up(10)
    play.say(11, Leave())
    for connection in (20, 21):
        play.say(connection, plain_hello(pid=8))

    events = play.take()

    assert kinds(events[3:6]) == [EpochBegan, WorkerLost, EpochEnded]
    assert kinds(events[6:]) == [WorkerLeft, WorkerCame, WorkerCame, EpochBegan]
    assert not any(seat.is_new for seat in events[-1].members)


@pytest.fixture
def after_plain_group():
    """A run that has just begun, after a plain group whose members were lost."""
    play = Chronicled(2)
    for connection in (10, 11):
        play.say(connection, plain_hello())
    play.hang_up(10)
    play.hang_up(11)
    for connection in (20, 21):
        play.say(connection, worker(connection))
    play.take()
    return play


def test_a_run_does_not_recover_from_the_losses_of_a_plain_group(after_plain_group):
    after_plain_group.finish_step(20, 21)

    assert after_plain_group.take() == []


def test_the_losses_of_a_plain_group_are_not_those_of_a_run(after_plain_group):
    after_plain_group.hang_up(20)
    after_plain_group.say(22, worker(22))
    after_plain_group.finish_step(21, 22)

    (recovered,) = (event for event in after_plain_group.take() if isinstance(event, Recovered))
    assert recovered.lost == 1


def test_the_rest_of_an_epoch_that_is_over_already_is_ignored():
    play = calm(2)
    late = Welcome(epoch=1, rank=1, key=bytes(16), members=(), step=0)
    play.chronicle._epoch = 2

    assert play.chronicle.tell((11,), late, 0.0) == []
