import numpy as np
import pytest

from phalanx.dashboard.series import Grid, grid_of, smooth


def test_a_few_steps_are_shown_one_by_one():
    grid = Grid(10, 13)

    line = grid.line(np.array([10.0, 11, 13]), np.array([1.0, np.nan, 3]))

    assert grid.places() == [10, 11, 12, 13]
    assert line == [1, None, None, 3]


@pytest.mark.parametrize("place", [0, 54_321, 99_999])
def test_a_single_spike_in_many_steps_stays(place):
    steps, values = np.arange(100_000.0), np.ones(100_000)
    values[place] = 50.0
    grid = grid_of([steps])

    line = grid.line(steps, values)

    assert len(line) == len(grid.places()) == 800
    assert max(line) == 50
    assert abs(grid.places()[line.index(50)] - place) <= 250  # a bin


def test_two_runs_share_the_places_of_their_points():
    short, long = np.arange(10.0), np.arange(5000.0)
    grid = grid_of([short, long])

    line = grid.line(short, short)

    assert (grid.first, grid.last) == (0, 4999)
    assert len(line) == len(grid.places())
    assert line[:2] == [0, 9]
    assert set(line[2:]) == {None}


def test_runs_without_a_step_have_no_grid():
    assert grid_of([np.array([])]) is None


def test_smoothing_takes_the_mean_of_the_values_before():
    np.testing.assert_allclose(smooth(np.array([1.0, 3, 5, 7]), 2), [1, 2, 4, 6])
