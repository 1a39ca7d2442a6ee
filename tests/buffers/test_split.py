import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import even_parts, slices
from phalanx.errors import ConfigError


def covered(slices: tuple[slice, ...]) -> list[int]:
    return [index for each in slices for index in range(each.start, each.stop)]


@settings(deadline=None)
@given(length=st.integers(0, 300), count=st.integers(1, 40))
def test_even_parts_cover_the_length_and_differ_by_at_most_one(length, count):
    parts = even_parts(length, count)

    sizes = [part.stop - part.start for part in parts]
    assert covered(parts) == list(range(length))
    assert sizes == [length // count + 1] * (length % count) + [length // count] * (count - length % count)


def test_more_parts_than_elements_leave_the_last_parts_empty():
    parts = even_parts(2, 4)

    assert parts == (slice(0, 1), slice(1, 2), slice(2, 2), slice(2, 2))


@settings(deadline=None)
@given(start=st.integers(0, 50), length=st.integers(0, 300), most=st.integers(1, 40))
def test_slices_are_all_full_but_the_last(start, length, most):
    found = tuple(slices(slice(start, start + length), most))

    assert covered(found) == list(range(start, start + length))
    assert all(each.stop - each.start == most for each in found[:-1])
    assert all(0 < each.stop - each.start <= most for each in found)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda: even_parts(-1, 2), "cannot hold -1 elements"),
        (lambda: even_parts(4, 0), "into 0 parts"),
        (lambda: slices(slice(0, 4), 0), "slices of 0 elements"),
        (lambda: slices(slice(0, 4), -1), "slices of -1 elements"),
    ],
)
def test_impossible_cuts_are_refused_at_once(cut, words):
    with pytest.raises(ConfigError, match=words):
        cut()
