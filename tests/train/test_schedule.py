import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.train.schedule import learning_rate

rates = st.floats(1e-6, 1)


@settings(deadline=None)
@given(peak=rates, fraction=st.floats(0, 1), steps=st.integers(2, 500), data=st.data())
def test_it_rises_to_exactly_the_peak_and_falls_to_exactly_the_least(peak, fraction, steps, data):
    warmup = data.draw(st.integers(0, steps - 1))
    least = peak * fraction

    course = [learning_rate(s, peak=peak, least=least, warmup=warmup, steps=steps) for s in range(steps)]

    top = max(warmup - 1, 0)
    tolerance = 1e-12 * peak
    assert course[top] == peak
    assert course[-1] == least
    assert all(a < b for a, b in pairwise(course[: top + 1]))
    assert all(a >= b - tolerance for a, b in pairwise(course[top:]))


def test_the_first_step_of_a_warm_up_already_learns():
    assert learning_rate(0, peak=1.0, least=0.0, warmup=4, steps=10) == 0.25


def test_half_way_down_it_is_half_way_between():
    rate = learning_rate(50, peak=1.0, least=0.2, warmup=0, steps=101)

    assert math.isclose(rate, 0.6)


def test_a_run_that_is_all_warm_up_ends_at_the_peak():
    assert learning_rate(9, peak=0.3, least=0.0, warmup=10, steps=10) == 0.3


@pytest.mark.parametrize("step", [10, 11, 1000])
def test_after_the_last_step_it_stays_at_the_least(step):
    assert learning_rate(step, peak=1.0, least=0.1, warmup=2, steps=10) == 0.1
