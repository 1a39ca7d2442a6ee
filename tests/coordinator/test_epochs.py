"""Runs: who is in which epoch, as workers come and go."""

import pytest
from coordinator_play import PATIENCE_S, Play, recorded, run_hello, run_of, told

from phalanx.coordinator.blame import GRACE_S
from phalanx.coordinator.decision import Drop, Record, Say
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.record import Committed, Ended, Formed
from phalanx.coordinator.terms import Terms
from phalanx.wire import Cause, Commit, Evict, Failed, Heard, Holds, Leave, Left, Refused, Revoked, Welcome


def lanes_of(welcome):
    return [member.lanes for member in welcome.members]


def steps_of(welcome):
    return [member.step for member in welcome.members]


# Beginning


def test_a_run_begins_with_the_least_workers_and_is_written_down_first():
    play = Play(2, 3)
    play.say(0, run_hello("a"))

    decisions = play.say(1, run_hello("b"))

    heard, written, *welcomes = decisions
    assert heard == Say((1,), Heard(5.0, 30.0))
    assert written == Record(Formed(epoch=1, step=0, lanes=8, names=("a", "b")))
    assert set(told(welcomes, Welcome)) == {0, 1}


def test_the_first_epoch_waits_for_as_many_workers_as_are_started():
    play = Play(1, 3, first=2)
    alone = play.say(0, run_hello("a"))

    both = play.say(1, run_hello("b"))
    play.hang_up(1)
    play.finish_step(0)

    assert told(alone, Welcome) == {}
    assert set(told(both, Welcome)) == {0, 1}
    assert (play.membership.epoch, play.membership.step) == (2, 1)


def test_the_first_epoch_begins_with_the_least_workers_when_the_others_do_not_come():
    play = Play(1, 3, first=2)
    play.say(0, run_hello("a"))

    early, due = play.wait(59), play.wait(2)

    assert told(early, Welcome) == {}
    assert set(told(due, Welcome)) == {0}


def test_a_run_begins_where_the_first_of_its_workers_is():
    play = Play(2)
    play.say(0, run_hello("a", step=0))

    welcomes = told(play.say(1, run_hello("b", step=40)), Welcome)

    assert {each.step for each in welcomes.values()} == {40}
    assert steps_of(welcomes[0]) == [0, 40]


@pytest.mark.parametrize(
    ("size", "lanes"),
    [(1, [(0, 8)]), (2, [(0, 4), (4, 8)]), (3, [(0, 3), (3, 6), (6, 8)])],
)
def test_lanes_are_consecutive_and_as_even_as_possible(size, lanes):
    play = Play(size)

    decisions = [each for rank in range(size) for each in play.say(rank, run_hello(f"w{rank}"))]

    assert lanes_of(told(decisions, Welcome)[0]) == lanes


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (
            run_hello("late", lanes=4),
            "you train with 4 lanes, this run with 8: start all with the same config",
        ),
        (
            run_hello("late", lanes=None),
            "you train with no lanes, this run with 8: start all with the same config",
        ),
        (
            run_hello("late", step=9),
            "you hold step 9, but this run is at step 0: start from its checkpoint, or with a new journal",
        ),
    ],
)
def test_who_does_not_fit_to_a_run_is_refused_even_if_nobody_else_is_there(hello, reason):
    play = run_of(2)
    play.hang_up(10)
    play.hang_up(11)

    decisions = play.say(20, hello)

    assert told(decisions, Refused) == {20: Refused(reason)}
    assert Drop(20, f"it was refused: {reason}") in decisions


def test_those_who_come_first_must_have_the_same_lanes_too():
    play = Play(2)
    play.say(0, run_hello("a", lanes=8))

    decisions = play.say(1, run_hello("b", lanes=4))

    words = "you train with 4 lanes, the others with 8: start all with the same config"
    assert told(decisions, Refused) == {1: Refused(words)}


def test_a_rank_that_there_is_not_is_given_to_nobody():
    play = Play(2, 4)
    play.say(0, run_hello("a", rank=2))

    welcomes = told(play.say(1, run_hello("b", rank=1)), Welcome)

    assert {connection: each.rank for connection, each in welcomes.items()} == {0: 0, 1: 1}


# Coming


def test_who_comes_late_waits_for_the_end_of_a_step():
    play = run_of(2, most=3)

    early = play.say(20, run_hello("late"))
    decisions = play.finish_step(10, 11)

    assert early == [Say((20,), Heard(5.0, 30.0))]
    kinds = [each.line if isinstance(each, Record) else type(each.message) for each in decisions]
    assert kinds[:3] == [Committed(1, 0, b"same", 0.5), Commit, Formed(2, 1, 8, ("w0", "w1", "late"))]
    assert told(decisions, Commit).keys() == {10, 11}
    welcomes = told(decisions, Welcome)
    assert {connection: each.rank for connection, each in welcomes.items()} == {10: 0, 11: 1, 20: 2}
    assert lanes_of(welcomes[20]) == [(0, 3), (3, 6), (6, 8)]
    assert steps_of(welcomes[20]) == [1, 1, 0]


def test_who_got_the_state_from_another_holds_it_in_the_next_epoch():
    play = run_of(2, least=1, most=3)
    play.say(20, run_hello("late"))
    play.finish_step(10, 11)

    play.say(20, Holds(epoch=2))
    welcome = told(play.hang_up(11), Welcome)[20]

    assert steps_of(welcome) == [1, 1]


def test_who_got_the_state_in_an_epoch_before_holds_it_if_no_step_was_committed_since():
    play = run_of(2, least=1, most=3)
    play.say(20, run_hello("late"))
    play.finish_step(10, 11)
    play.hang_up(11)

    play.say(20, Holds(epoch=2))
    welcome = told(play.hang_up(10), Welcome)[20]

    assert (welcome.epoch, steps_of(welcome)) == (4, [1])


def test_who_says_that_it_holds_the_state_of_another_epoch_does_not():
    play = run_of(2, least=1, most=3)
    play.say(20, run_hello("late"))
    play.finish_step(10, 11)

    play.say(20, Holds(epoch=1))
    welcome = told(play.hang_up(11), Welcome)[20]

    assert steps_of(welcome) == [1, 0]


def test_a_spare_waits_until_a_member_is_lost():
    play = run_of(2)
    play.say(20, run_hello("spare"))
    play.say(21, run_hello("another spare"))

    committed = play.finish_step(10, 11)
    lost = play.hang_up(10)

    assert told(committed, Welcome) == {}
    assert set(told(lost, Welcome)) == {11, 20}


def test_who_comes_again_replaces_itself():
    play = run_of(2)

    decisions = play.say(20, run_hello("w1"))

    assert told(decisions, Evict) == {11: Evict("rank 1 came again")}
    assert Drop(11, "rank 1 came again") in decisions
    assert told(decisions, Revoked) == {10: Revoked(1, Cause.LOST, 1, "rank 1 came again; rank 1 is process 7 on w1")}
    assert set(told(decisions, Welcome)) == {10, 20}


# Going


def test_a_loss_revokes_the_epoch_and_gives_all_lanes_to_the_others():
    play = run_of(3, least=2)

    decisions = play.hang_up(10)

    words = "rank 0 went away: its connection to the coordinator closed; rank 0 is process 7 on w0"
    assert decisions[0] == Say((11, 12), Revoked(1, Cause.LOST, 0, words))
    assert decisions[1] == Record(Formed(2, 0, 8, ("w1", "w2")))
    welcomes = told(decisions, Welcome)
    assert {connection: each.rank for connection, each in welcomes.items()} == {11: 0, 12: 1}
    assert lanes_of(welcomes[11]) == [(0, 4), (4, 8)]


def test_the_others_go_on_without_one_who_left():
    play = run_of(3, least=2)

    told_first = play.say(12, Leave())
    early = play.wait(0.9 * GRACE_S)
    decisions = play.wait(GRACE_S)

    assert told_first == [Say((10, 11), Left(2))]
    assert early == []
    words = "rank 2 left the run; rank 2 is process 7 on w2"
    assert told(decisions, Revoked) == dict.fromkeys((10, 11), Revoked(1, Cause.LEFT, 2, words))
    assert set(told(decisions, Welcome)) == {10, 11}


def test_one_who_left_between_done_and_commit_is_left_out_of_the_next_epoch():
    play = run_of(3, least=2, most=4)
    play.say(20, run_hello("late"))
    play.finish_step(12)
    play.say(12, Leave())

    decisions = play.finish_step(10, 11)

    assert told(decisions, Commit).keys() == {10, 11}
    assert set(told(decisions, Welcome)) == {10, 11, 20}
    assert play.wait(1.0) == []


def test_one_who_left_while_others_were_missing_is_not_missed_later():
    play = run_of(3)
    play.hang_up(12)
    play.say(11, Leave())
    play.say(20, run_hello("new"))

    decisions = play.say(21, run_hello("newer"))

    assert set(told(decisions, Welcome)) == {10, 20, 21}
    assert play.wait(1.0) == []


def test_a_run_is_over_when_all_have_left_it():
    play = run_of(2)
    play.finish_step(10, 11)
    play.say(20, run_hello("spare"))
    play.say(10, Leave())

    decisions = play.say(11, Leave())

    assert recorded(decisions) == [Ended("all workers left it at step 1")]
    assert told(decisions, Refused) == {20: Refused("the run is over")}
    assert play.wait(1.0) == []
    assert not play.membership.is_over
    play.hang_up(10)
    play.hang_up(11)
    assert play.membership.is_over


def disconnect(play, connection):
    play.hang_up(connection)


def restart_coordinator(play, _):
    play.membership = Membership(Terms(minimum=1, maximum=2), bytes(32), play.past, play.now)
    play.say(10, run_hello("w0", step=play.past.step))
    play.wait(PATIENCE_S)


@pytest.mark.parametrize("lose", [disconnect, restart_coordinator])
def test_a_run_waits_for_a_worker_that_was_lost_with_the_state_when_the_last_one_leaves(lose):
    play = run_of(2, least=1)
    play.finish_step(10, 11)
    lose(play, 11)

    left = play.say(10, Leave())
    back = play.say(21, run_hello("w1", step=1))

    assert recorded(left) == []
    assert set(told(back, Welcome)) == {21}


def test_a_run_that_waits_in_vain_for_the_state_halts():
    play = run_of(2, least=1)
    play.hang_up(11)
    play.say(10, Leave())

    early, due = play.wait(59), play.wait(2)

    assert recorded(early) == []
    assert [line.words.partition(":")[0] for line in recorded(due)] == [
        "there were 0 of at least 1 workers for 60 s at step 0"
    ]


def lose_before_a_step(play):
    play.hang_up(11)
    play.finish_step(10)


def let_it_die(play):
    play.say(10, Failed(1, Cause.DIED, 1, "rank 1 died"))


def let_it_raise(play):
    play.say(11, Failed(1, Cause.RAISED, 1, "rank 1 raised"))


@pytest.mark.parametrize("lose", [lose_before_a_step, let_it_die, let_it_raise])
def test_a_run_does_not_wait_for_a_worker_that_cannot_bring_the_state_back(lose):
    play = run_of(2, least=1)
    lose(play)

    decisions = play.say(10, Leave())

    assert [line.words for line in recorded(decisions)] == [f"all workers left it at step {play.membership.step}"]


def test_nobody_joins_a_run_that_is_over():
    play = run_of(1)
    play.say(10, Leave())

    decisions = play.say(20, run_hello("late"))

    words = "the run is over (all workers left it at step 0): start a coordinator with a new journal"
    assert told(decisions, Refused) == {20: Refused(words)}
