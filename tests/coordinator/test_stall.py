"""Silence alone is no crime: a worker is given up when it does nothing while another one waits for it."""

from coordinator_play import STALL_S, Play, elsewhere, only, plain_group, plain_hello, run_of, told, waiting
from msgspec.structs import replace

from phalanx.coordinator.blame import GRACE_S
from phalanx.wire import Ask, Cause, Evict, Heard, Revoked, Welcome


def report(play, seconds, answers, began=0.0):
    """Let time pass while rank 0 waits for rank 1 and says so every second; ``answers`` maps connections to answers."""
    until, decisions = play.now + seconds, []
    while play.now < until:
        decisions += play.wait(1.0)
        decisions += play.say(10, waiting(1, waited_s=play.now - began, cpu_s=play.now))
        for connection, answer in answers.items():
            decisions += play.say(connection, answer(play.now))
    return decisions + play.wait(GRACE_S)


def test_a_worker_that_answers_nothing_is_blamed_when_another_has_waited_for_the_stall_time():
    play = plain_group(3)

    early = report(play, STALL_S, {})
    late = report(play, 3.0, {})

    assert told(early, Revoked) == {}
    assert (only(late, Revoked).cause, only(late, Revoked).rank) == (Cause.STALLED, 1)
    assert only(late, Revoked).words.startswith("rank 0 has waited 3")


def test_a_worker_that_works_is_waited_for_however_long_it_takes():
    play = plain_group(3)

    decisions = report(play, 10 * STALL_S, {11: lambda now: elsewhere(cpu_s=0.5 * now)})

    assert told(decisions, Revoked) == {}


def test_a_worker_that_answers_but_does_nothing_is_blamed():
    play = plain_group(3)

    decisions = report(play, STALL_S + 4.0, {11: lambda _: elsewhere(cpu_s=7.0)})

    assert only(decisions, Revoked).rank == 1


def test_a_worker_that_waits_itself_is_not_to_blame():
    play = plain_group(3)

    decisions = report(play, 2 * STALL_S, {11: lambda _: waiting(2, waited_s=5.0)})

    assert told(decisions, Revoked) == {}


def test_a_worker_that_was_idle_is_not_blamed_until_somebody_has_waited_for_it():
    play = plain_group(3)
    report(play, 5.0, {11: lambda _: elsewhere(cpu_s=7.0)})
    play.wait(100 * STALL_S)

    decisions = report(play, 5.0, {11: lambda _: elsewhere(cpu_s=7.0)}, began=play.now)

    assert told(decisions, Revoked) == {}


def test_who_is_done_waits_for_those_who_are_not():
    play = run_of(3, least=2)
    play.finish_step(10, 12)
    decisions = []

    for _ in range(int(STALL_S) + 3):
        decisions += play.wait(1.0)
        play.say(10, elsewhere())
        play.say(12, elsewhere())

    assert told(decisions, Ask).keys() == {10, 11, 12}
    assert told(decisions, Evict).keys() == {11}
    assert told(decisions, Welcome).keys() == {10, 12}


def test_who_is_slow_but_works_may_be_done_late():
    play = run_of(3, least=2)
    play.finish_step(10, 12)
    decisions = []

    for second in range(10 * int(STALL_S)):
        decisions += play.wait(1.0)
        decisions += play.say(11, elsewhere(cpu_s=float(second)))

    assert told(decisions, Evict) == {}


def test_a_worker_may_bring_times_of_its_own():
    play = Play(2)
    own = play.say(0, replace(plain_hello(0), patience_s=2.0, stall_s=7.0))
    usual = play.say(1, plain_hello(1))

    assert told(own, Heard) == {0: Heard(2.0, 7.0)}
    assert told(usual, Heard) == {1: Heard(5.0, 30.0)}


def test_the_stall_time_is_that_of_the_worker_that_waits():
    play = Play(2)
    play.say(10, replace(plain_hello(0), stall_s=7.0))
    play.say(11, plain_hello(1))

    decisions = report(play, 10.0, {})

    assert only(decisions, Revoked).rank == 1
    assert play.now < STALL_S
