from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.order import permute, samples_of
from phalanx.errors import ConfigError

seeds = st.integers(0, 2**63 - 1)


def course(length: int, seed: int, pass_number: int) -> list[int]:
    return [permute(index, length, seed, pass_number) for index in range(length)]


@settings(deadline=None, max_examples=60)
@given(length=st.integers(1, 400), seed=seeds, pass_number=st.integers(0, 2**40))
def test_every_sample_comes_exactly_once_in_a_pass(length, seed, pass_number):
    assert sorted(course(length, seed, pass_number)) == list(range(length))


@settings(deadline=None)
@given(length=st.integers(1, 2**50), seed=seeds, data=st.data())
def test_an_order_of_any_length_stays_within_it(length, seed, data):
    index = data.draw(st.integers(0, length - 1))

    assert 0 <= permute(index, length, seed, 0) < length


def test_neighbours_part_and_every_seed_and_pass_has_an_order_of_its_own():
    length = 1000
    one, other_pass, other_seed = course(length, 0, 0), course(length, 0, 1), course(length, 1, 0)

    still_together = sum(abs(a - b) == 1 for a, b in pairwise(one))
    assert still_together < 20
    for other in (other_pass, other_seed, list(range(length))):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 20


def test_each_place_gets_each_sample_about_as_often_over_many_passes():
    length, passes = 10, 2000

    first = [permute(0, length, 0, number) for number in range(passes)]

    assert all(150 < first.count(sample) < 250 for sample in range(length))


def test_the_order_never_changes_from_one_version_to_the_next():
    assert course(10, 7, 3) == [0, 9, 5, 8, 2, 4, 1, 3, 7, 6]


@settings(deadline=None)
@given(
    length=st.integers(1, 60), batch=st.integers(1, 20), lanes=st.integers(1, 9), seed=seeds, steps=st.integers(1, 20)
)
def test_lanes_walk_through_the_passes_together_without_gap_or_overlap(length, batch, lanes, seed, steps):
    walked = [
        sample
        for step in range(steps)
        for lane in range(lanes)
        for sample in samples_of(step, lane, lanes=lanes, batch=batch, length=length, seed=seed)
    ]

    passes = -(-steps * batch // length)
    expected = [sample for number in range(passes) for sample in course(length, seed, number)]
    assert walked == expected[: steps * batch]


def test_a_lane_has_its_even_part_whatever_the_other_lanes_do():
    sizes = [len(samples_of(5, lane, lanes=4, batch=10, length=100, seed=0)) for lane in range(4)]

    assert sizes == [3, 3, 2, 2]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: samples_of(0, 8, lanes=8, batch=8, length=9, seed=0), "no lane 8 of 8"),
        (lambda: samples_of(0, -1, lanes=8, batch=8, length=9, seed=0), "no lane -1"),
        (lambda: permute(9, 9, 0, 0), "no index 9 in a length of 9"),
        (lambda: permute(-1, 9, 0, 0), "no index -1"),
    ],
)
def test_what_is_not_there_is_refused(ask, words):
    with pytest.raises(ConfigError, match=words):
        ask()
