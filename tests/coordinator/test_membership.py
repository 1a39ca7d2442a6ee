"""Groups that take no steps: joining, leaving and being lost."""

import itertools

import pytest
from coordinator_play import Play, only, plain_group, plain_hello, recorded, told, waiting

from phalanx.coordinator.decision import Drop, Say
from phalanx.wire import (
    Cause,
    Done,
    Failed,
    Heard,
    Leave,
    Left,
    LinkHello,
    Refused,
    Revoked,
    Welcome,
)

KEY = bytes(16)


def refusal(decisions, connection):
    said, dropped = decisions
    assert said.to == (connection,)
    assert dropped == Drop(connection, f"it was refused: {said.message.reason}")
    assert isinstance(said.message, Refused)
    return said.message.reason


# Joining


def test_nobody_is_welcome_before_everybody_has_come():
    play = Play(3)

    first = play.say(0, plain_hello())
    second = play.say(1, plain_hello())
    third = play.say(2, plain_hello())

    assert (first, second) == ([Say((0,), Heard(5.0, 30.0))], [Say((1,), Heard(5.0, 30.0))])
    assert set(told(third, Welcome)) == {0, 1, 2}


def test_everybody_is_told_the_same_and_its_own_rank():
    play = Play(2)
    play.say(7, plain_hello(pid=70))

    welcomes = told(play.say(8, plain_hello(pid=80)), Welcome)

    assert {connection: welcome.rank for connection, welcome in welcomes.items()} == {7: 0, 8: 1}
    assert welcomes[7].members == welcomes[8].members
    assert [(member.rank, member.pid) for member in welcomes[7].members] == [(0, 70), (1, 80)]
    assert len({(welcome.epoch, welcome.key) for welcome in welcomes.values()}) == 1


@pytest.mark.parametrize(
    ("asked", "given_ranks"),
    [
        ([None, None, None], [0, 1, 2]),
        ([2, 1, 0], [2, 1, 0]),
        ([None, 0, None], [1, 0, 2]),
        ([2, None, None], [2, 0, 1]),
        ([None, None, 1], [0, 2, 1]),
    ],
)
def test_who_asks_for_a_rank_gets_it_and_the_others_come_in_order(asked, given_ranks):
    play = Play(3)

    decisions = [each for connection, rank in enumerate(asked) for each in play.say(connection, plain_hello(rank))]

    welcomes = told(decisions, Welcome)
    assert [welcomes[connection].rank for connection in range(3)] == given_ranks


def test_the_order_of_hellos_does_not_change_who_gets_which_rank():
    for order in itertools.permutations(range(3)):
        play = Play(3)

        decisions = [each for rank in order for each in play.say(rank, plain_hello(rank))]

        assert {rank: welcome.rank for rank, welcome in told(decisions, Welcome).items()} == {0: 0, 1: 1, 2: 2}


def test_the_first_worker_may_say_how_many_there_will_be():
    play = Play()

    play.say(0, plain_hello(size=2))

    assert set(told(play.say(1, plain_hello()), Welcome)) == {0, 1}


def test_the_first_worker_of_a_second_group_says_it_anew():
    play = Play()
    play.say(0, plain_hello(size=1))
    play.say(0, Leave())

    play.say(1, plain_hello(size=2))

    assert set(told(play.say(2, plain_hello(size=2)), Welcome)) == {1, 2}


@pytest.mark.parametrize(
    ("size", "before", "late", "reason"),
    [
        (
            2,
            [],
            plain_hello(job="day"),
            "this is the coordinator of job 'night', not of 'day': look for yours at another address",
        ),
        (
            2,
            [plain_hello(0, job="night")],
            plain_hello(0, job="night"),
            (
                "rank 0 is taken: ask for another one, or for none; "
                "a program that connects again has to close its group first"
            ),
        ),
        (2, [], plain_hello(2, job="night"), "there is no rank 2 among 2 workers: ask for a lower one, or for none"),
        (
            2,
            [],
            plain_hello(size=3, job="night"),
            "you expect 3 workers, the others 2: start all with the same number",
        ),
        (
            None,
            [plain_hello(size=3, job="night")],
            plain_hello(size=2, job="night"),
            "you expect 2 workers, the others 3: start all with the same number",
        ),
        (
            None,
            [],
            plain_hello(job="night"),
            "nobody said how many workers there will be: tell the coordinator, or this worker, how many",
        ),
        (
            2,
            [plain_hello(job="night")] * 2,
            plain_hello(job="night"),
            (
                "the group is complete: all its 2 workers are here; "
                "a program that connects again has to close its group first"
            ),
        ),
    ],
)
def test_who_does_not_fit_is_refused_with_the_reason(size, before, late, reason):
    play = Play(size, job="night")
    for connection, message in enumerate(before):
        play.say(connection, message)

    decisions = play.say(9, late)

    assert refusal(decisions, 9) == reason


def test_a_refused_worker_does_not_count():
    play = Play(2)
    play.say(0, plain_hello(0))
    play.say(1, plain_hello(0))

    decisions = play.say(2, plain_hello())

    assert set(told(decisions, Welcome)) == {0, 2}


def test_who_hangs_up_while_joining_makes_room():
    play = Play(2)
    play.say(0, plain_hello(0))

    gone = play.hang_up(0)

    assert gone == []
    play.say(1, plain_hello(0))
    assert set(told(play.say(2, plain_hello(1)), Welcome)) == {1, 2}


@pytest.mark.parametrize(
    "message",
    [
        Leave(),
        waiting(),
        Failed(1, Cause.LOST, 0, "gone"),
        LinkHello(1, 0, KEY),
        Done(1, 0, 0.0, b""),
    ],
)
def test_who_does_not_say_hello_first_is_refused(message):
    assert refusal(plain_group().say(99, message), 99) == "say hello first"


# Leaving and being lost


def test_everybody_who_is_left_is_told_of_a_loss_once():
    play = plain_group(3)

    first = play.hang_up(11)
    second = play.hang_up(12)

    words = "rank 1 went away: its connection to the coordinator closed"
    assert first == [Say((10, 12), Revoked(1, Cause.LOST, 1, words))]
    assert second == []


def test_who_is_silent_is_not_given_up_while_nobody_waits_for_it():
    play = plain_group(3)

    assert play.wait(10_000.0) == []


def test_who_leaves_is_no_loss():
    play = plain_group(3)

    decisions = play.say(11, Leave())

    assert decisions == [Say((10, 12), Left(rank=1))]
    assert play.hang_up(11) == []
    assert play.wait(1.0) == []


def test_who_needs_a_rank_that_left_is_told_so_at_once():
    play = plain_group(3)
    play.say(11, Leave())
    play.hang_up(11)

    decisions = play.say(10, Failed(1, Cause.LOST, 1, "rank 1 closed its connection"))

    words = "rank 1 left the group, and rank 0 needed it"
    assert decisions == [Say((10, 12), Revoked(1, Cause.LEFT, 1, words))]


def test_a_second_group_forms_when_all_have_left_the_first():
    play = plain_group(2)
    play.say(10, Leave())
    early = play.say(20, plain_hello(0))
    still_early = play.say(21, plain_hello())

    decisions = play.say(11, Leave())

    assert early == [Say((20,), Heard(5.0, 30.0))]
    assert refusal(still_early, 21).startswith("the group is complete")
    assert decisions == []
    welcomes = told(play.say(22, plain_hello(1)), Welcome)
    assert {connection: (each.epoch, each.rank) for connection, each in welcomes.items()} == {20: (2, 0), 22: (2, 1)}


def test_a_second_group_has_another_key():
    play = Play(1)
    first = only(play.say(0, plain_hello()), Welcome)
    play.say(0, Leave())

    second = only(play.say(1, plain_hello()), Welcome)

    assert (first.epoch, second.epoch) == (1, 2)
    assert first.key != second.key


def test_nobody_of_an_old_group_is_in_a_new_one_though_it_is_still_connected():
    play = plain_group(2)
    play.hang_up(10)
    play.say(20, plain_hello())
    play.say(21, plain_hello())
    play.hang_up(20)

    decisions = play.say(22, plain_hello())

    assert told(decisions, Welcome) == {}
    assert set(told(play.say(23, plain_hello()), Welcome)) == {22, 23}


def test_a_plain_group_is_never_written_down():
    play = plain_group(2)

    decisions = [*play.hang_up(10), *play.say(11, Leave())]

    assert recorded(decisions) == []
    assert not play.membership.is_over
