import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from phalanx.buffers import CHUNK
from phalanx.errors import CollectiveMismatch, ConfigError, NonFiniteGradient
from phalanx.gradient_server.accumulator import (
    Accumulator,
    Arithmetic,
    Weighting,
    check_asked,
    check_shapes,
    has_late_weights,
)
from phalanx.wire import gradient

F32 = np.float32
values = st.floats(-(2.0**100), 2.0**100, width=32)


def stated(elements, samples=1, loss=0.0, correct=0, what=None, sizes=None):
    what = gradient.Whole() if what is None else what
    return gradient.Gradient(7, what, elements, sizes or (elements,), loss, correct, samples)


def names(count):
    return [f"worker {number} (w{number}, 10.0.0.{number}:1)" for number in range(count)]


def reduce(contributions, samples=None, **options):
    samples = samples or [1] * len(contributions)
    sent = [stated(len(each), count) for each, count in zip(contributions, samples, strict=True)]
    accumulator = Accumulator(sent, names(len(sent)), **options)
    accumulator.add_up(slice(0, len(contributions[0])), contributions)
    return accumulator.result


@st.composite
def contributions(draw, most=5):
    count, length = draw(st.integers(1, most)), draw(st.integers(1, 20))
    return list(draw(arrays.arrays(F32, (count, length), elements=values)))


def tree(terms):
    """The canonical sum, written down once more: split at the largest power of two below the number of terms."""
    if len(terms) == 1:
        return terms[0]
    half = 1
    while half * 2 < len(terms):
        half *= 2
    return tree(terms[:half]) + tree(terms[half:])


@settings(deadline=None)
@given(contributions())
def test_equal_weights_give_the_mean_in_the_order_of_the_tree(given_):
    expected = tree(given_) / F32(len(given_))

    for result in (reduce(given_), reduce(given_, weighting=Weighting.EQUAL, samples=list(range(len(given_))))):
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


@settings(deadline=None)
@given(contributions(), st.data())
def test_each_counts_for_as_many_as_it_has_samples(given_, data):
    samples = data.draw(st.lists(st.integers(0, 99), min_size=len(given_), max_size=len(given_), unique=True))
    if len(given_) == 1:
        expected = given_[0]
    else:
        expected = tree([each * F32(count) for each, count in zip(given_, samples, strict=True)]) / F32(sum(samples))

    result = reduce(given_, samples)

    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


@settings(deadline=None)
@given(contributions())
def test_the_arithmetic_of_entrenar_is_its_own_bit_for_bit(given_):
    expected = np.zeros(len(given_[0]), F32)
    for each in given_:
        for element in range(len(expected)):
            expected[element] = expected[element] + each[element]
    for element in range(len(expected)):
        expected[element] = expected[element] / F32(len(given_))

    result = reduce(given_, arithmetic=Arithmetic.ENTRENAR)

    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


def test_minus_zero_keeps_its_sign_with_us_and_loses_it_with_entrenar():
    zeros = [np.full(1, -0.0, F32), np.full(1, -0.0, F32)]

    assert np.signbit(reduce(zeros)).all()
    assert not np.signbit(reduce(zeros, arithmetic=Arithmetic.ENTRENAR)).any()


def test_order_matters_and_is_the_dialects():
    terms = [np.full(1, term, F32) for term in (2.0**24, 1.0, 1.0, 1.0)]

    assert reduce(terms) * 4 == 2.0**24 + 2
    assert reduce(terms, arithmetic=Arithmetic.ENTRENAR) * 4 == 2.0**24


def test_weights_that_nobody_counted_are_equal():
    pair = [np.array([1.0], F32), np.array([2.0], F32)]
    sent = [stated(1, samples=7), stated(1, samples=None)]
    accumulator = Accumulator(sent, names(2))

    accumulator.add_up(slice(0, 1), pair)

    assert accumulator.result == 1.5


def test_no_samples_at_all_give_the_plain_mean():
    assert reduce([np.array([1.0], F32), np.array([2.0], F32)], samples=[0, 0]) == 1.5


def test_runs_of_any_length_give_the_same_bits():
    random = np.random.default_rng(1)
    given_ = list(random.standard_normal((3, 2 * CHUNK + 17)).astype(F32))
    accumulator = Accumulator([stated(len(given_[0]), count) for count in (1, 2, 3)], names(3))

    for start in range(0, len(given_[0]), 1000):
        stop = min(start + 1000, len(given_[0]))
        accumulator.add_up(slice(start, stop), [each[start:stop] for each in given_])

    np.testing.assert_array_equal(accumulator.result, reduce(given_, samples=[1, 2, 3]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("samples", [None, [1, 2, 0]])
def test_a_value_that_is_not_finite_is_traced_to_its_worker_and_element(value, samples):
    given_ = [np.ones(3 * CHUNK, F32) for _ in range(3)]
    given_[2][CHUNK + 5] = value

    with pytest.raises(NonFiniteGradient) as caught:
        reduce(given_, samples)

    words = f"worker 2 (w2, 10.0.0.2:1) sent {F32(value)} as element {CHUNK + 5} of the whole gradient at step 7"
    assert words in str(caught.value)
    assert (caught.value.step, caught.value.rank) == (7, 2)


@pytest.mark.parametrize("samples", [None, [3, 4]])
def test_finite_values_whose_sum_overflows_are_nobodys_fault(samples):
    most = np.finfo(F32).max
    given_ = [np.array([1.0, most], F32), np.array([1.0, most], F32)]

    with pytest.raises(NonFiniteGradient, match=r"overflows at element 1 .* although each of them is finite") as caught:
        reduce(given_, samples)

    assert caught.value.rank is None


def test_the_loss_is_that_of_all_samples():
    sent = [stated(1, samples=1, loss=0.1, correct=1), stated(1, samples=3, loss=0.3, correct=2)]

    mean = Accumulator(sent, names(2)).describe(sent)

    assert (mean.loss, mean.samples, mean.correct) == ((0.1 * 1 + 0.3 * 3) / 4, 4, 3)


def test_the_loss_of_entrenar_is_added_up_in_f32():
    losses, counts = (0.1, 0.7, 1e-8), (3, 2**24, 1)
    sent = [stated(1, samples=count, loss=loss) for loss, count in zip(losses, counts, strict=True)]
    total = F32(0.0)
    for loss, count in zip(losses, counts, strict=True):
        total = total + F32(loss) * F32(count)

    mean = Accumulator(sent, names(3), arithmetic=Arithmetic.ENTRENAR).describe(sent)

    assert mean.loss == float(total / F32(sum(counts)))
    assert mean.loss != Accumulator(sent, names(3)).describe(sent).loss


def test_without_samples_the_loss_is_zero():
    sent = [stated(1, samples=0, loss=3.0)]

    for arithmetic in Arithmetic:
        assert Accumulator(sent, names(1), arithmetic=arithmetic).describe(sent).loss == 0.0


def test_the_odd_one_out_is_named_with_both_sides_words():
    sent = [stated(5), stated(5), stated(4), stated(5)]

    with pytest.raises(CollectiveMismatch) as caught:
        check_shapes(sent, names(4))

    assert caught.value.peer == 2
    assert str(caught.value) == (
        "worker 2 (w2, 10.0.0.2:1) sent step 7, the whole gradient: 4 elements, but worker 0 (w0, "
        "10.0.0.0:1) sent step 7, the whole gradient: 5 elements: all workers must train the same model"
    )


def test_components_of_other_sizes_are_noticed():
    with pytest.raises(CollectiveMismatch, match=r"5 elements \(2 \+ 3\), but .* 5 elements \(3 \+ 2\)"):
        check_shapes([stated(5, sizes=(2, 3)), stated(5, sizes=(3, 2))], names(2))


def test_a_difference_in_a_late_component_is_shown():
    sizes = [(1,) * 20 + (2, 3), (1,) * 20 + (3, 2)]

    with pytest.raises(CollectiveMismatch, match="component 20 has 3 and 2 elements: all workers must train"):
        check_shapes([stated(25, sizes=each) for each in (sizes[0], sizes[1], sizes[0])], names(3))


def test_nothing_is_allocated_for_gradients_that_do_not_belong_together():
    sent = [stated(2**60), stated(5), stated(5)]

    with pytest.raises(CollectiveMismatch, match=f"worker 0 .* sent .* {2**60} elements"):
        Accumulator(sent, names(3))


@pytest.mark.parametrize(
    ("step", "what"),
    [(6, gradient.ModelBlock(3, of=8)), (7, gradient.ModelBlock(4, of=8)), (7, gradient.ModelBlock(3, of=9))],
)
def test_another_step_or_block_or_model_than_the_server_collects_is_refused(step, what):
    sent = stated(5, what=gradient.ModelBlock(3, of=8))

    with pytest.raises(CollectiveMismatch, match="sent step 7, block 3 of 8, but the server collects") as caught:
        check_asked(1, "worker 1", sent, step, what)

    assert caught.value.peer == 1
    check_asked(1, "worker 1", sent, 7, gradient.ModelBlock(3, of=8))


def test_only_weights_that_are_not_known_yet_are_waited_for():
    block = gradient.ModelBlock(0, of=1)

    assert has_late_weights([stated(1, samples=3), stated(1, samples=None)], Weighting.SAMPLES)
    assert not has_late_weights([stated(1, samples=None)], Weighting.EQUAL)
    assert not has_late_weights([stated(1, samples=None, what=block)], Weighting.SAMPLES)
    assert not has_late_weights([stated(1, samples=3)], Weighting.SAMPLES)


def test_a_weighting_that_is_none_is_a_bad_request():
    with pytest.raises(ConfigError, match="'tokens' is not a weighting: use samples or equal"):
        Weighting.parse("tokens")
