import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import make_step, make_steps

from phalanx.train.compare import Comparison, Difference, compare


def test_equal_runs_are_the_same():
    comparison = compare(make_steps(30), make_steps(30))

    assert comparison.is_same
    assert str(comparison) == "the same for all 30 steps, bit for bit"


def test_the_first_difference_is_found_to_the_last_bit():
    first, second = make_steps(30), make_steps(30)
    second[16] = make_step(17, 5.0 / 17 + 2**-54, digest="d2")
    second[20] = make_step(21, 9.0)

    comparison = compare(first, second)

    assert not comparison.is_same
    assert str(comparison) == (
        "step 17 differs: loss 0.2941 (bits 3fd2d2d2d2d2d2d3) and 0.2941 (bits 3fd2d2d2d2d2d2d4), "
        "digest d1 and d2. 16 steps before it are the same."
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"norm": 1.5}, "norm 1.2500 (bits 3ff4000000000000) and 1.5000 (bits 3ff8000000000000)"),
        ({"digest": "d2"}, "digest d1 and d2"),
        ({"state_digest": "s2"}, "digest of all state after the step s1 and s2"),
        ({"loss": -0.0}, "loss 0.0000 (bits 0000000000000000) and -0.0000 (bits 8000000000000000)"),
    ],
)
def test_every_figure_that_must_agree_is_compared(other, words):
    same = {"loss": 0.0, "state_digest": "s1"}

    comparison = compare([make_step(1, **same)], [make_step(1, **(same | other))])

    assert str(comparison) == f"step 1 differs: {words}. 0 steps before it are the same."


def test_what_a_run_may_do_otherwise_is_not_compared():
    other = make_steps(3, state_digest="s1", workers=8, seconds=9.0, compute_s=1.0, exchange_s=2.0, wait_s=3.0)

    assert compare(make_steps(3), other).is_same


def test_a_longer_run_is_the_same_as_far_as_both_go():
    comparison = compare(make_steps(20), make_steps(30))

    assert comparison.is_same
    assert str(comparison) == "the same for all 20 steps that both have, bit for bit; only the second has 10 steps more"
    assert str(compare(make_steps(2), make_steps(1))) == (
        "the same for all 1 step that both have, bit for bit; only the first has 1 step more"
    )


def test_runs_are_compared_by_the_numbers_of_their_steps():
    comparison = compare(make_steps(5)[2:], make_steps(4))

    assert comparison == Comparison(equal=2, first_alone=1, second_alone=2)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([], [], "there is no step that both have: both are empty"),
        (make_steps(2), [], "there is no step that both have: only the first has 2 steps more"),
    ],
)
def test_runs_without_a_common_step_are_not_the_same(first, second, words):
    comparison = compare(first, second)

    assert not comparison.is_same
    assert str(comparison) == words


@given(st.integers(1, 12), st.integers(1, 12), st.sets(st.integers(1, 12)))
def test_the_verdict_is_what_a_look_at_every_step_gives(length, other_length, changed):
    second = [make_step(step.step, step.loss, digest="x" * (step.step in changed)) for step in make_steps(other_length)]
    first = make_steps(length, digest="")
    common = min(length, other_length)
    differing = [step for step in sorted(changed) if step <= common]

    comparison = compare(first, second)

    assert comparison.is_same == (not differing)
    assert comparison.equal == (differing[0] - 1 if differing else common)
    assert comparison.differences == ((Difference("digest", "", "x"),) if differing else ())
