"""Why a run ends before its time."""

import pytest
from coordinator_play import Play, only, recorded, run_hello, run_of, told

from phalanx.coordinator.decision import Record, Say
from phalanx.coordinator.record import Ended
from phalanx.wire import Commit, Halt, Leave, Reason, Welcome

REJOIN_S = 60.0


# Halting


def test_a_worker_that_halts_halts_everybody_with_its_own_words():
    play = run_of(2)
    play.say(20, run_hello("spare"))
    halt = Halt(0, Reason.NON_FINITE, 1, "rank 1, lane 5: layer.weight is not finite")

    decisions = play.say(11, halt)

    assert decisions == [Record(Ended(halt.words)), Say((10, 11, 20), halt)]


@pytest.mark.parametrize(
    ("words", "located"),
    [
        (
            "the gradient of w is not finite: rank 1 computed it",
            "the gradient of w is not finite: rank 1 computed it{}",
        ),
        ("rank 1 failed at step 3:\n    Traceback\n    E", "rank 1 failed at step 3{}:\n    Traceback\n    E"),
        ("rank 1 failed{}", "rank 1 failed{}"),
    ],
)
def test_who_is_told_of_a_rank_is_told_which_process_it_is(words, located):
    where = "; rank 1 is process 7 on w1"
    play = run_of(2)

    decisions = play.say(10, Halt(0, Reason.RAISED, 1, words.format(where), epoch=1))

    assert only(decisions, Halt).words == located.format(where)
    assert recorded(decisions) == [Ended(located.format(where))]


def test_the_process_of_a_rank_is_said_even_if_the_words_are_as_long_as_a_message():
    decisions = run_of(2).say(10, Halt(0, Reason.RAISED, 1, "x" * 4096, epoch=1))

    assert only(decisions, Halt).words.endswith("x; rank 1 is process 7 on w1")


def test_a_rank_of_an_earlier_epoch_is_not_taken_for_the_one_that_has_its_number_now():
    play = run_of(3, least=2)
    play.hang_up(11)

    decisions = play.say(10, Halt(0, Reason.NON_FINITE, 1, "rank 1 computed it", epoch=1))

    assert play.membership.epoch == 2
    assert only(decisions, Halt).words == "rank 1 computed it"


def test_a_worker_that_waits_to_come_back_can_halt_everybody():
    play = run_of(2)
    play.say(20, run_hello("was a member when it found out"))
    halt = Halt(0, Reason.RAISED, None, "Traceback ...")

    decisions = play.say(20, halt)

    assert decisions == [Record(Ended(halt.words)), Say((10, 11, 20), halt)]


def test_all_members_may_leave_one_after_the_other_while_somebody_waits():
    play = run_of(2)
    play.say(20, run_hello("spare"))

    play.say(10, Leave())
    play.say(11, Leave())
    play.wait(1.0)

    assert play.membership.ended is None
    assert told(play.say(21, run_hello("another")), Welcome).keys() == {20, 21}


def test_the_first_reason_to_halt_stays():
    play = run_of(1)
    play.say(10, Halt(0, Reason.NON_FINITE, 0, "not finite"))

    later = [*play.say(10, Halt(0, Reason.RAISED, 0, "later")), *play.say(10, Leave()), *play.finish_step(10)]

    assert later == []
    assert play.membership.ended == "not finite"


def test_a_commit_that_cannot_be_written_down_halts_everybody_and_is_taken_back():
    play = run_of(2)
    written, _ = play.finish_step(10, 11)

    decisions = play.membership.fail_to_record(written.line, "No space left on device")

    words = "the coordinator cannot write its journal: No space left on device; "
    words += "make room, and start it again on the same journal"
    assert decisions == [Say((10, 11), Halt(0, Reason.UNRECORDED, None, words))]
    assert told(play.say(20, run_hello("w0", pending=b"same")), Commit) == {}


def test_an_epoch_that_cannot_be_written_down_halts_everybody():
    play = Play(1)
    _, written, _ = play.say(10, run_hello("w0"))

    decisions = play.membership.fail_to_record(written.line, "No space left on device")

    assert only(decisions, Halt).reason is Reason.UNRECORDED
    assert recorded(decisions) == []


# Being stuck


def test_a_run_with_too_few_workers_waits_and_then_gives_up():
    play = run_of(2)
    play.finish_step(10, 11)
    play.hang_up(11)

    early = play.wait(0.9 * REJOIN_S)
    decisions = play.wait(0.2 * REJOIN_S)

    words = "there were 1 of at least 2 workers for 60 s at step 1: "
    words += "start all workers again from the last checkpoint, with a new journal"
    assert early == []
    assert decisions == [Record(Ended(words)), Say((10,), Halt(1, Reason.STUCK, None, words))]


def test_a_run_that_nobody_holds_the_state_of_gives_up():
    play = run_of(1)
    play.finish_step(10)
    play.hang_up(10)
    play.say(20, run_hello("new"))

    decisions = play.wait(REJOIN_S)

    words = "no worker that holds the state of step 1 came within 60 s: "
    words += "start all workers again from the last checkpoint, with a new journal"
    assert only(decisions, Halt) == Halt(1, Reason.STATE_LOST, None, words)


def test_a_run_that_became_whole_in_time_does_not_give_up():
    play = run_of(2)
    play.hang_up(11)
    play.wait(0.9 * REJOIN_S)

    play.say(20, run_hello("new"))

    assert play.wait(REJOIN_S) == []


def test_a_run_gives_up_after_a_hundred_epochs_in_which_no_step_succeeded():
    play = run_of(1)
    decisions = []

    for connection in range(20, 120):
        assert decisions == [] or told(decisions, Halt) == {}
        decisions = play.say(connection, run_hello("w0"))

    words = "step 0 did not succeed in 100 epochs: look at the network between the workers, "
    words += "then start all of them again from the last checkpoint, with a new journal"
    assert only(decisions, Halt) == Halt(0, Reason.STUCK, None, words)
    assert told(decisions, Welcome) == {}


def test_a_step_that_succeeds_makes_epochs_fruitful_again():
    play = run_of(1)
    for connection in range(20, 100):
        play.say(connection, run_hello("w0"))
    play.finish_step(99)

    decisions = [each for connection in range(100, 160) for each in play.say(connection, run_hello("w0", step=1))]

    assert told(decisions, Halt) == {}
