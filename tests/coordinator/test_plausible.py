"""What a worker may say, and what becomes of one that says something else."""

import pytest
from coordinator_play import LANES, Play, only, plain_group, run_hello, run_of, told, waiting
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.coordinator.decision import Drop
from phalanx.coordinator.record import Past
from phalanx.errors import BadFrame
from phalanx.wire import (
    Ask,
    Cause,
    Commit,
    Done,
    Evict,
    Failed,
    Halt,
    Leave,
    Look,
    Reason,
    Refused,
    Revoked,
    Welcome,
    encode,
)

WRONG = {
    "an older step": (Done(1, 0, 0.5, b"same"), "it is done with step 0, but the run is at step 1"),
    "a later step": (Done(1, 2, 0.5, b"same"), "it is done with step 2, but the run is at step 1"),
    "the last step": (Done(1, 2**64 - 1, 0.5, b"same"), f"it is done with step {2**64 - 1}, but the run is at step 1"),
    "a halt to come": (
        Halt(7, Reason.RAISED, 1, "words"),
        "it halts everybody at step 7, but the run is at step 1",
    ),
    "a halt because of nobody": (
        Halt(1, Reason.NON_FINITE, 65000, "words"),
        "it speaks of rank 65000, but the ranks are 0 to 2",
    ),
    "a halt that is not its own": (
        Halt(1, Reason.UNRECORDED, None, "words"),
        "it halts everybody because the run is unrecorded, which only the coordinator can know",
    ),
    "waiting for nobody there": (waiting(0, 3), "it speaks of rank 3, but the ranks are 0 to 2"),
    "waiting without times": (
        replace(waiting(0, 2), waited_s=(1.0,)),
        "it waits for 2 ranks, and says for 1 for how long",
    ),
    "accusing nobody there": (Failed(1, Cause.LOST, 3, "words"), "it speaks of rank 3, but the ranks are 0 to 2"),
    "another's failure": (
        Failed(1, Cause.RAISED, 2, "words"),
        "it says that the program of rank 2 failed, which only that rank can know",
    ),
    "accusing itself": (
        Failed(1, Cause.STALLED, 1, "words"),
        "it says of itself that it is stalled, which only another rank can find",
    ),
    "a second hello": (run_hello("w1"), "only the coordinator or a newcomer says Hello"),
    "a look": (Look(), "only the coordinator or a newcomer says Look"),
    "an order": (Commit(1, b"same"), "only the coordinator or a newcomer says Commit"),
    "a question": (Ask(), "only the coordinator or a newcomer says Ask"),
}


@pytest.mark.parametrize("reason", [each for each in Reason if each not in (Reason.STUCK, Reason.UNRECORDED)])
def test_a_worker_may_halt_everybody_for_what_it_finds_itself(reason):
    play = run_of(3, least=2)

    decisions = play.say(11, Halt(0, reason, 1, "words"))

    assert told(decisions, Halt).keys() == {10, 11, 12}


@pytest.mark.parametrize("what", WRONG)
def test_nonsense_costs_its_sender_its_place_and_the_others_go_on(what):
    message, fault = WRONG[what]
    play = run_of(3, least=2)
    play.finish_step(10, 11, 12)

    decisions = play.say(11, message)

    assert only(decisions, Refused).reason.startswith(f"rank 1 was sent away for what it sent: {fault};")
    assert told(decisions, Refused).keys() == {11}
    assert [each.connection for each in decisions if isinstance(each, Drop)] == [11]
    assert fault in only(decisions, Revoked).words
    assert told(decisions, Revoked).keys() == told(decisions, Welcome).keys() == {10, 12}
    assert only(play.finish_step(10, 12), Commit) == Commit(1, b"same")


@pytest.mark.parametrize("what", ["a halt to come", "another's failure", "waiting for nobody there"])
def test_nonsense_ends_a_plain_group_with_the_name_of_its_sender(what):
    decisions = plain_group(3).say(11, WRONG[what][0])

    assert told(decisions, Refused).keys() == {11}
    assert (only(decisions, Revoked).cause, only(decisions, Revoked).rank) == (Cause.LOST, 1)


def test_a_worker_that_waits_and_talks_nonsense_disturbs_nobody():
    play = run_of(2)
    play.say(20, run_hello("spare"))

    decisions = play.say(20, Halt(9, Reason.RAISED, None, "words"))

    assert told(decisions, Refused).keys() == {20}
    assert told(decisions, Revoked) == {}
    assert only(play.finish_step(10, 11), Commit) == Commit(0, b"same")


def test_a_worker_that_has_left_says_nothing_more():
    play = run_of(2)
    play.say(10, Leave())

    assert [*play.say(10, Leave()), *play.say(10, Halt(0, Reason.RAISED, 0, "late"))] == []


def test_a_halt_may_be_older_than_the_epoch_it_arrives_in():
    play = run_of(3, least=2)
    play.finish_step(10, 11, 12)
    play.hang_up(12)

    decisions = play.say(10, Halt(0, Reason.NON_FINITE, 2, "rank 2, lane 7"))

    assert told(decisions, Halt).keys() == {10, 11}


def test_a_worker_that_comes_back_may_halt_a_coordinator_that_has_forgotten_everything():
    play = run_of(3)
    play.hang_up(10)
    play.hang_up(11)
    play.hang_up(12)
    play.say(20, run_hello("w0"))

    decisions = play.say(20, Halt(0, Reason.RAISED, 2, "Traceback ..."))

    assert told(decisions, Halt).keys() == {20}


@pytest.mark.parametrize("message", [Failed(1, Cause.LOST, 2, "words"), waiting(2)])
def test_a_worker_that_comes_back_may_speak_of_ranks_that_a_restarted_coordinator_does_not_know(message):
    play = Play(2, 3, past=Past(epoch=1, step=0, lanes=LANES, names=frozenset({"w0", "w1", "w2"})))
    play.say(20, run_hello("w0"))

    assert play.say(20, message) == []


def test_a_step_from_which_nobody_can_count_on_is_refused_before_it_is_heard():
    with pytest.raises(BadFrame, match="step"):
        encode(run_hello("w0", step=2**53))


def test_a_look_gets_one_answer_however_often_it_is_asked():
    play = plain_group(2)
    for _ in range(5):
        play.say(20, Look())

    decisions = play.wait(1.0)

    assert [each.to for each in decisions] == [(20,)]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**64 - 1), st.integers(0, 65534), st.sampled_from(Reason), st.integers(0, 3))
def test_whatever_one_member_claims_the_others_end_with_the_right_steps(step, rank, reason, kind):
    """A halt that makes sense ends the run for all, in words; nothing else that one member says does."""
    message = [
        Done(1, step, 0.5, b"same"),
        Failed(1, Cause.RAISED, rank, "words"),
        waiting(rank),
        Halt(step, reason, rank, "words"),
    ][kind]
    play = run_of(3, least=2)
    play.finish_step(10, 11, 12)

    decisions = play.say(11, message)

    if told(decisions, Halt):
        assert isinstance(message, Halt)
        assert play.membership.ended == "words"
    else:
        gone = told(decisions, Refused) or told(decisions, Evict)
        members = [10, 12] if gone else [10, 11, 12]
        already_done = 11 in members and isinstance(message, Done)
        commit = play.finish_step(*(each for each in members if not (already_done and each == 11)))
        assert only(commit, Commit) == Commit(1, b"same")
