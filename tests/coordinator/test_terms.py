import pytest

from phalanx.coordinator.terms import Terms, parse_workers
from phalanx.errors import ConfigError


@pytest.mark.parametrize(("text", "workers"), [("4", (4, 4)), ("2:8", (2, 8)), ("1:1", (1, 1)), ("02", (2, 2))])
def test_the_number_of_workers_is_one_or_a_range(text, workers):
    assert parse_workers(text) == workers


@pytest.mark.parametrize("text", ["", "two", "-1", "2:", ":8", "2-8", "2:8:9", " 2", "2\n", "٣", "1000000"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ConfigError) as caught:
        parse_workers(text)

    assert str(caught.value) == f"the number of workers is N or MIN:MAX, as in 4 or 2:8, not {text!r}"


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 4), (3, 2), (2, 0), (-1, 4), (2, None), (None, 2)])
def test_a_range_in_which_no_number_lies_is_refused(least, most):
    with pytest.raises(ConfigError) as caught:
        Terms(minimum=least, maximum=most)

    assert str(caught.value) == f"in MIN:MAX workers, MIN must be at least 1 and MAX at least MIN, not {least}:{most}"


@pytest.mark.parametrize("first", [1, 4])
def test_the_first_workers_to_wait_for_are_within_the_bounds(first):
    with pytest.raises(ConfigError, match=f"the first {first} workers to wait for are not within 2 to 3"):
        Terms(minimum=2, maximum=3, first=first)


@pytest.mark.parametrize("patience_s", [0.0, 0.09, -1.0, 3601.0, float("nan"), float("inf")])
def test_a_patience_that_nobody_can_mean_is_refused(patience_s):
    with pytest.raises(ConfigError) as caught:
        Terms(patience_s=patience_s)

    assert str(caught.value) == f"--patience and PHALANX_PATIENCE are from 0.1 to 3600 seconds, not {patience_s:g}"


@pytest.mark.parametrize("stall_s", [0.0, 0.09, -1.0, 1_000_001.0, float("nan"), float("inf")])
def test_a_stall_time_that_nobody_can_mean_is_refused(stall_s):
    with pytest.raises(ConfigError) as caught:
        Terms(stall_s=stall_s)

    assert str(caught.value) == f"--stall and PHALANX_STALL are from 0.1 to 1000000 seconds, not {stall_s:g}"


def test_a_run_waits_for_workers_as_patiently_as_it_is_told():
    terms = Terms(patience_s=10.0)

    assert (terms.longest_nap_s, terms.rejoin_s) == (2.0, 120.0)


@pytest.mark.parametrize("size", [None, 3])
def test_exact_terms_ask_for_one_number_of_workers(size):
    terms = Terms.exactly(size, job="night", stall_s=7.0)

    assert terms == Terms(minimum=size, maximum=size, job="night", stall_s=7.0)
