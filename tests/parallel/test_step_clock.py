"""Where the time of a step goes: what was waited for beside computing is not counted twice."""

import pytest

from phalanx.parallel.engine.clock import StepClock


class Waiting:
    """An exchange that has waited as long as the test says."""

    def __init__(self):
        self.seconds = 0.0


@pytest.mark.parametrize(("beside", "after", "is_all_waiting"), [(1000.0, 0.0, False), (0.0, 1000.0, True)])
def test_only_waiting_that_computing_did_not_cover_counts(beside, after, is_all_waiting):
    exchange = Waiting()
    clock = StepClock(lambda: exchange.seconds)

    exchange.seconds += beside
    clock.end_computing()
    exchange.seconds += after
    clock.end_exchange()
    clock.end_waiting()
    computing, exchanging, waiting = clock.read()

    assert computing > 0
    assert (exchanging == 0) is is_all_waiting
    assert 0 < waiting < 1000
