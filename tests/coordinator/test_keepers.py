"""Who keeps the run, and what the run is: members that can keep it get the first ranks, and facts are offered once."""

from coordinator_play import LANES, Play, recorded, run_hello, told

from phalanx.coordinator.decision import Record, Say
from phalanx.coordinator.record import Offered, Past
from phalanx.wire import Describe, Described, Evict, Holds, Revoked, Welcome


def begin(least, most, *keeping):
    """A run in its first epoch, with a worker behind each connection from 0 on; ``keeping`` says who can keep it."""
    play = Play(least, most, past=Past(lanes=LANES, names=frozenset(f"w{each}" for each in range(len(keeping)))))
    decisions = []
    for connection, can_keep in enumerate(keeping):
        decisions += play.say(connection, run_hello(f"w{connection}", can_keep=can_keep))
    return play, told(decisions, Welcome)


def ranks_of(welcomes):
    return {connection: welcome.rank for connection, welcome in welcomes.items()}


def test_workers_that_can_keep_the_run_get_the_first_ranks_and_everybody_knows_it():
    _, welcomes = begin(4, 4, False, True, False, True)

    assert ranks_of(welcomes) == {1: 0, 3: 1, 0: 2, 2: 3}
    assert [member.can_keep for member in welcomes[0].members] == [True, True, False, False]


def test_a_newcomer_that_can_keep_the_run_becomes_rank_0_though_others_hold_the_state():
    play, _ = begin(1, 4, False, True)
    play.finish_step(1, 0)
    play.hang_up(1)

    welcomes = told(play.say(7, run_hello("new", can_keep=True)) + play.say(0, run_hello("w0", step=1)), Welcome)

    assert ranks_of(welcomes) == {7: 0, 0: 1}
    assert [member.step for member in welcomes[0].members] == [0, 1]


def test_a_run_without_a_keeper_lets_one_in_at_once_and_not_after_the_next_step():
    play, _ = begin(1, 4, True, False, False)
    play.hang_up(0)

    decisions = play.say(7, run_hello("new", can_keep=True))

    assert told(decisions, Evict)[2].words == "rank 1 made room for a worker that can keep the run"
    assert set(told(decisions, Revoked)) == {1}
    assert ranks_of(told(decisions, Welcome)) == {7: 0, 1: 1}


def test_a_full_run_without_a_keeper_makes_room_for_one():
    play, _ = begin(2, 2, False, False)

    waiting = play.say(7, run_hello("plain"))
    decisions = play.say(8, run_hello("new", can_keep=True))

    assert told(waiting, Evict) == {}
    assert set(told(decisions, Evict)) == {1}
    assert ranks_of(told(decisions, Welcome)) == {8: 0, 0: 1}


def test_the_one_worker_that_holds_the_state_is_not_replaced_by_a_keeper():
    play, _ = begin(1, 1, False)
    play.finish_step(0)

    play.say(7, run_hello("new", can_keep=True))
    welcomes = told(play.say(8, run_hello("w0", step=1)), Welcome)

    assert ranks_of(welcomes) == {8: 0}


def test_a_run_with_a_keeper_lets_another_one_in_after_the_step():
    play, _ = begin(2, 3, True, False)

    early = play.say(7, run_hello("new", can_keep=True))
    late = play.finish_step(0, 1)

    assert (told(early, Evict), told(early, Welcome)) == ({}, {})
    assert ranks_of(told(late, Welcome)) == {0: 0, 7: 1, 1: 2}


def test_a_keeper_that_was_given_up_waits_for_the_next_step_like_others():
    play, _ = begin(2, 2, False, False)
    play.membership._roster.benched.add("given up")

    early = play.say(7, run_hello("given up", can_keep=True))
    late = play.finish_step(0, 1)

    assert told(early, Evict) == {}
    assert ranks_of(told(late, Welcome)) == {7: 0, 0: 1}


def test_a_keeper_that_has_got_the_state_counts_as_one_that_holds_it():
    play, _ = begin(1, 4, False, True)
    play.finish_step(1, 0)
    play.hang_up(1)
    play.say(7, run_hello("new", can_keep=True))
    play.say(0, run_hello("w0", step=1))
    play.say(7, Holds(play.membership.epoch))

    decisions = play.hang_up(0)

    assert ranks_of(told(decisions, Welcome)) == {7: 0}


class TestFacts:
    def test_nobody_knows_what_the_run_is_before_somebody_says_it(self):
        play = Play(2)

        assert play.say(5, Describe()) == [Say((5,), Described(None))]

    def test_the_first_facts_are_written_down_and_told_to_everybody(self):
        play = Play(2)

        first = play.say(5, Describe(b"first"))
        second = play.say(6, Describe(b"second"))

        assert first == [Record(Offered(b"first")), Say((5,), Described(b"first"))]
        assert second == [Say((6,), Described(b"first"))]

    def test_a_coordinator_that_comes_back_knows_them_still(self):
        play = Play(2)
        play.say(5, Describe(b"facts"))

        again = Play(2, past=play.past)

        assert again.say(5, Describe(b"others")) == [Say((5,), Described(b"facts"))]

    def test_who_asked_may_join_on_the_same_connection(self):
        play = Play(1)
        play.say(5, Describe())

        assert recorded(play.say(5, run_hello("w0")))

    def test_a_worker_that_is_in_does_not_ask(self):
        play, _ = begin(2, 2, True, False)

        decisions = play.say(1, Describe(b"facts"))

        assert told(decisions, Described) == {}
        assert set(told(decisions, Revoked)) == {0}
