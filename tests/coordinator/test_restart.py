"""A coordinator that is started again on its journal."""

import pytest
from coordinator_play import Play, recorded, run_hello, run_of, told

from phalanx.coordinator.decision import Say
from phalanx.coordinator.record import Ended, Formed, Past
from phalanx.wire import Commit, Done, Heard, Refused, Welcome

REJOIN_S = 60.0


def steps_of(welcome):
    return [member.step for member in welcome.members]


def restarted(play):
    """The coordinator of another run, started again on its journal."""
    return Play(2, 3, past=play.past, now=1000.0)


def test_a_restarted_coordinator_waits_for_those_it_knew_then_goes_on_at_the_same_step():
    before = run_of(3, least=2)
    before.finish_step(10, 11, 12)
    play = restarted(before)

    early = [*play.say(0, run_hello("w0", step=1)), *play.say(1, run_hello("w1", step=1))]
    decisions = play.say(2, run_hello("w2", step=1))

    assert told(early, Welcome) == {}
    assert recorded(decisions) == [Formed(2, 1, 8, ("w0", "w1", "w2"))]
    assert {each.step for each in told(decisions, Welcome).values()} == {1}


def test_those_who_hold_the_state_come_before_those_who_do_not():
    before = run_of(2)
    before.finish_step(10, 11)
    play = Play(2, past=before.past)
    play.say(0, run_hello("new"))
    play.say(1, run_hello("w0", step=1))

    decisions = play.say(2, run_hello("w1", step=1))

    assert told(decisions, Welcome).keys() == {1, 2}


def test_a_restarted_coordinator_does_not_wait_for_ever():
    before = run_of(3, least=2)
    play = restarted(before)
    play.say(0, run_hello("w0"))
    play.say(1, run_hello("w1"))

    early = play.wait(4.9)
    decisions = play.wait(0.2)

    assert early == []
    assert recorded(decisions) == [Formed(2, 0, 8, ("w0", "w1"))]


def test_a_restarted_coordinator_confirms_the_step_that_somebody_was_done_with():
    before = run_of(2)
    before.finish_step(10, 11)
    play = restarted(before)

    first = play.say(0, run_hello("w0", step=0, pending=b"same"))
    second = play.say(1, run_hello("w1", step=1))

    assert first == [Say((0,), Commit(0, b"same")), Say((0,), Heard(5.0, 30.0))]
    assert told(second, Commit) == {}
    assert steps_of(told(second, Welcome)[0]) == [1, 1]


@pytest.mark.parametrize(("step", "pending"), [(0, b"other"), (0, None), (1, b"same")])
def test_a_step_is_confirmed_to_nobody_who_was_not_done_with_it(step, pending):
    before = run_of(2)
    before.finish_step(10, 11)
    play = restarted(before)

    decisions = play.say(0, run_hello("w0", step=step, pending=pending))

    assert told(decisions, Commit) == {}


def test_a_restarted_coordinator_that_nobody_comes_back_to_gives_up():
    before = run_of(2)
    play = restarted(before)

    decisions = play.wait(REJOIN_S)

    words = "there were 0 of at least 2 workers for 60 s at step 0: "
    words += "start all workers again from the last checkpoint, with a new journal"
    assert recorded(decisions) == [Ended(words)]


def test_a_coordinator_of_a_new_run_waits_as_long_as_it_takes():
    play = Play(2)
    play.say(0, run_hello("a"))

    assert play.wait(10 * REJOIN_S) == []
    assert play.membership.ended is None


def test_a_run_that_was_over_stays_over_after_a_restart():
    play = Play(1, past=Past(epoch=3, step=7, lanes=8, ended="all workers left it at step 7"))

    decisions = play.say(0, run_hello("w0"))

    assert told(decisions, Refused).keys() == {0}
    assert play.membership.next_tick is None


def test_work_of_an_epoch_before_the_restart_is_void():
    before = run_of(2)
    play = restarted(before)
    play.say(0, run_hello("w0"))
    play.say(1, run_hello("w1"))

    late = Done(epoch=1, step=0, loss=0.5, digest=b"same")

    assert [*play.say(0, late), *play.say(1, late)] == []
    assert play.membership.step == 0
