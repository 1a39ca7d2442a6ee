"""Who accuses whom, and what the coordinator makes of it."""

import pytest
from coordinator_play import elsewhere, only, plain_group, run_hello, run_of, told, waiting

from phalanx.coordinator.blame import GRACE_S, LONGEST_WORDS
from phalanx.coordinator.decision import Drop, Say
from phalanx.wire import Ask, Cause, Evict, Failed, Halt, Leave, Reason, Refused, Revoked, Welcome

# In a group that takes no steps


@pytest.mark.parametrize(("cause", "speaker"), [(Cause.DISAGREED, 0), (Cause.GARBLED, 0), (Cause.RAISED, 2)])
def test_what_a_rank_knows_for_certain_revokes_at_once(cause, speaker):
    decisions = plain_group(3).say(10 + speaker, Failed(1, cause, 2, "both sides' words"))

    assert decisions == [Say((10, 11, 12), Revoked(1, cause, 2, "both sides' words"))]


@pytest.mark.parametrize("make", [plain_group, run_of])
def test_a_rank_whose_process_was_seen_to_die_is_lost_at_once(make):
    play = make(3)

    decisions = play.say(10, Failed(1, Cause.DIED, 2, "rank 2 went away: its process died"))
    later = play.hang_up(12)

    assert decisions[0] == Drop(12, "its process died")
    assert (only(decisions, Revoked).cause, only(decisions, Revoked).rank) == (Cause.LOST, 2)
    assert later == []


def test_nobody_can_say_of_itself_that_it_died():
    decisions = plain_group(3).say(10, Failed(1, Cause.DIED, 0, "words"))

    assert "which only another rank can find" in only(decisions, Refused).reason


def test_an_accusation_of_loss_waits_for_better_evidence():
    play = plain_group(3)

    play.say(10, Failed(1, Cause.LOST, 1, "its link broke"))
    early = play.wait(0.9 * GRACE_S)
    evidence = play.hang_up(12)

    assert early == []
    assert only(evidence, Revoked).rank == 2
    assert play.wait(1.0) == []


def test_an_accusation_of_loss_without_better_evidence_is_believed():
    play = plain_group(3)
    play.say(10, Failed(1, Cause.LOST, 1, "its link broke"))

    decisions = play.wait(GRACE_S)

    assert only(decisions, Revoked) == Revoked(1, Cause.LOST, 1, "rank 0: its link broke")


def test_an_accusation_is_due_after_the_time_of_grace():
    play = plain_group(3)
    play.wait(0.1)

    play.say(10, Failed(1, Cause.LOST, 1, "its link broke"))

    assert play.membership.next_tick == 0.1 + GRACE_S


def test_the_longest_words_of_an_accuser_still_fit_into_a_verdict():
    play = plain_group(3)
    play.say(10, Failed(1, Cause.LOST, 1, "x" * 4096))

    decisions = play.wait(GRACE_S)

    assert len(only(decisions, Revoked).words) == LONGEST_WORDS


def test_a_stall_is_asked_about_and_the_silent_rank_is_blamed_through_a_chain():
    play = plain_group(4)

    asked = play.say(10, Failed(1, Cause.STALLED, 1, "no answer from rank 1"))
    play.say(11, waiting(2))
    play.say(12, waiting(3))
    decisions = play.wait(GRACE_S)

    words = "no answer from rank 1; rank 3 holds everybody up: it does not answer"
    assert asked == [Say((10, 11, 12, 13), Ask())]
    assert only(decisions, Revoked) == Revoked(1, Cause.STALLED, 3, words)


def test_a_second_accusation_does_not_put_off_the_verdict():
    play = plain_group(3)
    play.say(10, Failed(1, Cause.STALLED, 1, "late"))
    play.wait(0.1)

    later = play.say(11, Failed(1, Cause.STALLED, 2, "late"))

    assert later == []
    assert only(play.wait(GRACE_S - 0.1), Revoked).rank == 1


def test_who_reports_its_wait_hears_nothing_more_if_everybody_is_in_the_same_call():
    play = plain_group(3)

    asked = play.say(10, waiting(0))
    for connection in (10, 11, 12):
        play.say(connection, waiting(0))

    assert asked == [Say((10, 11, 12), Ask())]
    assert play.wait(1.0) == []


def test_who_reports_its_wait_is_told_when_ranks_are_in_different_calls():
    play = plain_group(3)
    play.say(10, waiting(0))
    for connection, words in ((10, "barrier"), (11, "broadcast"), (12, "barrier")):
        play.say(connection, waiting(words=words))

    decisions = play.wait(GRACE_S)

    words = "rank 1 is in broadcast, but rank 0 is in barrier: "
    words += "all ranks must make the same calls, of the same type and length, in the same order"
    assert told(decisions, Revoked) == dict.fromkeys((10, 11, 12), Revoked(1, Cause.DISAGREED, 1, words))


def test_an_accusation_is_heard_although_all_were_asked_already():
    play = plain_group(3)
    play.say(10, waiting(1))

    play.say(11, Failed(1, Cause.LOST, 2, "its link broke"))

    assert only(play.wait(GRACE_S), Revoked).rank == 2


def test_who_has_left_is_not_asked():
    play = plain_group(3)
    play.say(12, Leave())

    assert play.say(10, waiting(1)) == [Say((10, 11), Ask())]


def test_who_waits_for_nobody_makes_the_coordinator_ask_nobody():
    play = plain_group(3)

    assert play.say(10, elsewhere()) == []
    assert play.wait(1.0) == []


def test_all_are_asked_only_now_and_then_however_many_wait():
    play = plain_group(3)
    play.say(10, waiting(2))
    play.wait(GRACE_S)

    assert play.say(11, waiting(2)) == []
    play.wait(GRACE_S)
    assert told(play.say(11, waiting(2)), Ask).keys() == {10, 11, 12}


def test_an_accusation_after_the_verdict_changes_nothing():
    play = plain_group(3)
    play.hang_up(11)

    assert play.say(10, Failed(1, Cause.DISAGREED, 2, "late news")) == []
    assert play.wait(1.0) == []


# In a run


def test_a_run_goes_on_without_the_culprit():
    play = run_of(3, least=2)

    decisions = play.say(11, Failed(1, Cause.RAISED, 1, "rank 1 cannot go on"))

    words = "rank 1 cannot go on; rank 1 is process 7 on w1"
    assert told(decisions, Evict) == {11: Evict("rank 1 cannot go on")}
    assert told(decisions, Revoked) == dict.fromkeys((10, 12), Revoked(1, Cause.RAISED, 1, words))
    assert told(decisions, Welcome).keys() == {10, 12}


def test_the_culprit_waits_while_there_are_enough_others():
    play = run_of(4, least=2)
    play.say(11, Failed(1, Cause.RAISED, 1, "rank 1 cannot go on"))
    play.say(20, run_hello("w1"))

    enough = play.hang_up(13)
    too_few = play.hang_up(12)

    assert told(enough, Welcome).keys() == {10, 12}
    assert told(too_few, Welcome).keys() == {10, 20}


def test_the_culprit_is_admitted_once_a_step_has_succeeded():
    play = run_of(3, least=2)
    play.say(11, Failed(1, Cause.RAISED, 1, "rank 1 cannot go on"))
    play.say(20, run_hello("w1"))

    decisions = play.finish_step(10, 12)

    assert set(told(decisions, Welcome)) == {10, 12, 20}


def test_a_rank_whose_link_broke_is_evicted_after_the_time_of_grace():
    play = run_of(3, least=2)
    play.say(10, Failed(1, Cause.LOST, 2, "its link broke"))

    decisions = play.wait(GRACE_S)

    assert told(decisions, Evict) == {12: Evict("rank 0: its link broke")}
    assert set(told(decisions, Welcome)) == {10, 11}


def test_an_accusation_of_the_epoch_before_means_nothing():
    play = run_of(3, least=2, most=4)
    play.say(20, run_hello("late"))
    play.say(10, Failed(1, Cause.LOST, 2, "its link broke"))

    play.finish_step(10, 11, 12)

    assert play.membership.epoch == 2
    assert play.wait(GRACE_S) == []


def test_ranks_that_disagree_on_what_to_do_halt_the_run():
    play = run_of(3)
    play.say(10, waiting(0))
    for connection, words in ((10, "barrier"), (11, "broadcast"), (12, "barrier")):
        play.say(connection, waiting(words=words))

    decisions = play.wait(GRACE_S)

    halt = only(decisions, Halt)
    assert (halt.step, halt.reason, halt.rank) == (0, Reason.DIVERGED, 1)
    assert halt.words.startswith("rank 1 is in broadcast, but rank 0 is in barrier: ")
    assert set(told(decisions, Halt)) == {10, 11, 12}


def test_an_accusation_in_an_epoch_that_is_over_is_void():
    play = run_of(2)
    play.hang_up(11)

    assert play.say(10, Failed(1, Cause.RAISED, 0, "late")) == []
    assert play.wait(GRACE_S) == []
