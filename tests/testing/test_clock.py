import pytest

from phalanx.errors import ConfigError
from phalanx.testing import ManualClock


def test_a_manual_clock_stands_still_until_it_is_told():
    clock = ManualClock(now=5.0)

    before = clock(), clock()
    clock.advance(2.5)

    assert before == (5.0, 5.0)
    assert clock() == 7.5


def test_a_manual_clock_never_goes_back():
    with pytest.raises(ConfigError, match="never goes back"):
        ManualClock().advance(-1)
