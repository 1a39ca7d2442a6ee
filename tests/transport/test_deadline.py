import pytest

from phalanx.errors import ConfigError
from phalanx.testing import ManualClock
from phalanx.transport import Deadline


def test_a_deadline_passes_when_its_time_has_come():
    clock = ManualClock(now=100.0)
    deadline = Deadline.after(3, clock)

    clock.advance(2.5)
    before = deadline.has_passed, deadline.remaining_s()
    clock.advance(0.5)
    after = deadline.has_passed, deadline.remaining_s()

    assert before == (False, 0.5)
    assert after == (True, 0.0)


def test_no_time_remains_after_a_deadline():
    clock = ManualClock()
    deadline = Deadline.after(1, clock)

    clock.advance(5)

    assert deadline.remaining_s() == 0.0


def test_a_deadline_remembers_how_long_it_was():
    assert Deadline.after(2.5).seconds == 2.5


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_that_is_not_in_the_future_is_refused(seconds):
    with pytest.raises(ConfigError, match="more than 0 seconds"):
        Deadline.after(seconds)
