"""By how much another machine's clock differs."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx.telemetry import ClockEstimate, Offset

OFFSET = 5_000_000_000
delays = st.integers(0, 10_000_000)


def test_nobody_knows_before_an_answer():
    assert ClockEstimate().at(0) is None


def test_the_quickest_answer_decides():
    clock = ClockEstimate()
    clock.add(0, 900 + 77, 1000)  # the answer took 900 to come and the other clock is ahead by 877
    clock.add(2000, 2000 + 10 + OFFSET, 2020)
    clock.add(3000, 3000 + 400 + OFFSET, 3500)

    assert clock.at(3500) == Offset(OFFSET, 11)


def test_an_old_answer_is_worth_less_than_a_new_one_that_was_a_little_slower():
    clock = ClockEstimate()
    clock.add(0, OFFSET, 100_000)
    hour_ns = 3_600_000_000_000
    clock.add(hour_ns, hour_ns + OFFSET + 3_000_000, hour_ns + 200_000)

    assert abs(clock.at(hour_ns + 200_000).offset_ns - OFFSET - 3_000_000) <= 100_001


@given(st.lists(st.tuples(delays, delays, st.integers(0, 10**9)), min_size=1, max_size=100), st.floats(-49e-6, 49e-6))
def test_the_true_offset_is_within_the_uncertainty_whatever_the_delays_and_the_drift(exchanges, drift):
    clock, now = ClockEstimate(), 0

    def other(at):
        return OFFSET + at + int(drift * at)

    for there, back, pause in exchanges:
        clock.add(now, other(now + there), now + there + back)
        now += there + back + pause

    found = clock.at(now)
    assert abs(other(now) - now - found.offset_ns) <= found.uncertainty_ns + 1


def test_an_answer_from_before_the_question_is_ignored_and_another_coordinator_starts_anew():
    clock = ClockEstimate()
    clock.add(10, 5, 3)
    assert clock.at(10) is None

    clock.add(10, 50, 30)
    clock.forget()
    assert clock.at(40) is None
