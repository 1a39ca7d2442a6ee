import signal
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from phalanx.launch.stopping import Stopping

WITHIN_S = 3.0  # how soon everybody ends if there is nothing to save


def sent(stopping, until):
    """What is sent from second 0 on, and when."""
    return [(tick / 10, number) for tick in range(int(until * 10) + 1) for number in stopping.due(tick / 10)]


def test_nothing_is_sent_without_a_reason():
    stopping = Stopping(grace_s=3)

    assert (sent(stopping, 100), stopping.has_begun) == ([], False)


def test_ranks_may_report_a_failure_and_save_before_they_are_killed():
    stopping = Stopping(grace_s=120)

    stopping.fail(0, have_joined=True)

    assert sent(stopping, 200) == [(2, SIGTERM), (122, SIGKILL)]


def test_a_failure_before_all_have_joined_ends_everybody_soon_whatever_the_grace():
    stopping = Stopping(grace_s=120)

    stopping.fail(0, have_joined=False)

    (_, first), (at, last) = sent(stopping, 200)
    assert (first, last, at < WITHIN_S) == (SIGTERM, SIGKILL, True)


def test_a_second_failure_changes_nothing():
    stopping = Stopping(grace_s=10)

    stopping.fail(0, have_joined=True)
    stopping.fail(1, have_joined=True)

    assert sent(stopping, 200) == [(2, SIGTERM), (12, SIGKILL)]


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
@pytest.mark.parametrize("stop_signal", [None, signal.SIGUSR1])
def test_a_signal_is_passed_on_at_once_and_workers_may_save(number, stop_signal):
    stopping = Stopping(grace_s=120, stop_signal=stop_signal)

    stopping.ask(0, number, have_joined=True)

    assert sent(stopping, 200) == [(0, stop_signal or number), (120, SIGKILL)]


def test_workers_that_have_not_all_joined_have_nothing_to_save():
    stopping = Stopping(grace_s=120)

    stopping.ask(0, SIGINT, have_joined=False)

    (_, first), (at, last) = sent(stopping, 200)
    assert (first, last, at < WITHIN_S) == (SIGINT, SIGKILL, True)


def test_a_second_signal_ends_workers_soon():
    stopping = Stopping(grace_s=120)
    stopping.ask(-50, SIGINT, have_joined=True)
    stopping.due(-50)

    stopping.ask(0, SIGTERM, have_joined=True)

    (start, first), (at, last) = sent(stopping, 200)
    assert (start, first, last, at < WITHIN_S) == (0, SIGTERM, SIGKILL, True)


def test_workers_that_fail_when_asked_to_stop_do_not_end_the_others_sooner():
    stopping = Stopping(grace_s=120)
    stopping.ask(0, SIGINT, have_joined=True)
    stopping.due(0)

    stopping.fail(1, have_joined=True)

    assert sent(stopping, 200) == [(120, SIGKILL)]
