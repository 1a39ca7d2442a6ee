"""What people are told who look."""

import pytest
from coordinator_play import Play, elsewhere, only, plain_group, plain_hello, run_hello, run_of, told, waiting

from phalanx.coordinator.blame import GRACE_S
from phalanx.coordinator.decision import Say
from phalanx.wire import Ask, Commit, Halt, Leave, Look, Reason, Standing, Status

LOOKER = 99


def look(play, answers=()):
    """The status that somebody is told; ``answers`` has what the workers behind connections answer meanwhile."""
    play.say(LOOKER, Look())
    for connection, answer in answers:
        play.say(connection, answer)
    return told(play.wait(GRACE_S), Status)[LOOKER]


def test_who_looks_is_told_how_every_worker_stands():
    play = run_of(2)
    play.say(20, run_hello("spare"))
    play.wait(2.0)

    status = look(play, [(10, elsewhere()), (11, elsewhere())])

    common = {"host": "anvil", "pid": 7, "device": "cpu", "threads": 2, "is_done": False, "waits_for": (), "doing": ""}
    assert status == Status(
        epoch=1,
        step=0,
        words="at step 0",
        workers=(
            Standing(rank=0, name="w0", lanes=(0, 4), silent_s=GRACE_S, **common),
            Standing(rank=1, name="w1", lanes=(4, 8), silent_s=GRACE_S, **common),
            Standing(rank=None, name="spare", lanes=None, silent_s=2.0 + GRACE_S, **common),
        ),
    )


def test_everybody_is_asked_what_they_wait_for():
    play = run_of(3)

    asked = play.say(LOOKER, Look())

    assert asked == [Say((10, 11, 12), Ask())]


def test_workers_that_wait_to_be_admitted_are_asked_too():
    play = run_of(2)
    play.say(20, run_hello("spare"))

    assert play.say(LOOKER, Look()) == [Say((10, 11, 20), Ask())]


def test_who_looks_is_told_who_waits_for_whom():
    play = run_of(3)
    play.finish_step(10)

    status = look(play, [(11, waiting(2, words="all-reduce of bucket 3"))])

    assert [each.waits_for for each in status.workers] == [(1, 2), (2,), ()]
    assert [each.is_done for each in status.workers] == [True, False, False]
    assert [each.doing for each in status.workers] == ["", "all-reduce of bucket 3", ""]


def test_two_who_look_are_told_the_same():
    play = run_of(1)
    play.say(LOOKER, Look())

    asked = play.say(LOOKER + 1, Look())

    assert asked == []
    assert set(told(play.wait(GRACE_S), Status)) == {LOOKER, LOOKER + 1}


def test_who_looks_while_the_epoch_changes_is_still_told():
    play = run_of(3, least=2)
    play.say(LOOKER, Look())
    play.hang_up(10)

    status = only(play.wait(GRACE_S), Status)

    assert [each.name for each in status.workers] == ["w1", "w2"]


def test_who_looks_while_a_step_ends_and_somebody_is_admitted_is_still_told():
    play = run_of(1, most=2)
    play.say(20, run_hello("late"))
    play.say(LOOKER, Look())
    assert told(play.finish_step(10), Commit)

    status = only(play.wait(GRACE_S), Status)

    assert (status.epoch, status.step, len(status.workers)) == (2, 1, 2)


def test_looking_changes_nothing_for_the_workers():
    play = run_of(2)

    look(play, [(10, waiting(1)), (11, waiting(0))])

    assert told(play.finish_step(10, 11), Commit).keys() == {10, 11}


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (Play(), "waiting for workers: 0 here, at least ? needed"),
        (Play(2), "waiting for workers: 0 here, at least 2 needed"),
        (plain_group(2), "a group is at work"),
        (run_of(2), "at step 0"),
    ],
    ids=["nobody", "nobody yet", "plain", "run"],
)
def test_the_state_is_said_in_words(play, words):
    assert look(play).words == words


def test_a_run_that_lost_somebody_says_how_many_are_missing():
    play = run_of(3)
    play.hang_up(10)

    status = look(play)

    assert status.words == "waiting for workers: 2 here, at least 3 needed"
    assert [(each.name, each.rank, each.lanes) for each in status.workers] == [("w1", 1, None), ("w2", 2, None)]


def test_a_run_that_is_over_says_why_however_long_the_reason():
    play = run_of(1)
    play.say(10, Halt(0, Reason.RAISED, 0, "x" * 4096))

    assert look(play).words == "over: " + "x" * 4000


def test_who_has_left_is_not_shown():
    play = plain_group(2)
    play.say(10, Leave())

    assert [each.rank for each in look(play).workers] == [1]


def test_a_worker_of_a_plain_group_has_no_lanes():
    play = Play(1)
    play.say(0, plain_hello())

    assert [each.lanes for each in look(play).workers] == [None]
