from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import numpy as np
import pytest

from phalanx.buffers import CHUNK, DType, ReduceOp, accumulate, check, finish, fold, round_to_bf16, widen, widen_bf16
from phalanx.errors import ConfigError

UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.MEAN: np.add,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.BITWISE_AND: np.bitwise_and,
    ReduceOp.BITWISE_OR: np.bitwise_or,
    ReduceOp.BITWISE_XOR: np.bitwise_xor,
}
POSSIBLE = [(op, dtype) for op in ReduceOp for dtype in DType if not (op.is_bitwise if dtype.is_float else op.is_mean)]
NARROW = [DType.F16, DType.BF16]


def encode(dtype: DType, values: np.ndarray) -> np.ndarray:
    """The values as a buffer of this type."""
    if dtype is not DType.BF16:
        with np.errstate(over="ignore"):
            return values.astype(dtype.numpy)
    out = np.empty(len(values), np.uint16)
    round_to_bf16(values.astype(np.float32), out)
    return out


def decode(dtype: DType, buffer: np.ndarray) -> np.ndarray:
    """The buffer's elements in the type that adds them up."""
    if dtype is not DType.BF16:
        return buffer.astype(dtype.accumulator.numpy)
    out = np.empty(len(buffer), np.float32)
    widen_bf16(buffer, out)
    return out


def random_inputs(dtype: DType, count: int, length: int) -> list[np.ndarray]:
    random = np.random.default_rng(count * 10_000 + length)
    if dtype is DType.BOOL:
        return [random.random(length) < 0.5 for _ in range(count)]
    if not dtype.is_float:
        information = np.iinfo(dtype.numpy)
        ends = int(information.min), int(information.max)
        return [random.integers(*ends, length, dtype.numpy, endpoint=True) for _ in range(count)]
    return [encode(dtype, random.standard_normal(length) * 3) for _ in range(count)]


def tree(ufunc: np.ufunc, leaves: list[np.ndarray]) -> np.ndarray:
    if len(leaves) == 1:
        return leaves[0]
    half = max(2**k for k in range(8) if 2**k < len(leaves))
    return ufunc(tree(ufunc, leaves[:half]), tree(ufunc, leaves[half:]))


def expected(op: ReduceOp, dtype: DType, inputs: list[np.ndarray]) -> np.ndarray:
    """The reduction by whole arrays in the accumulator type, rounded once."""
    result = tree(UFUNCS[op], [decode(dtype, each) for each in inputs])
    return encode(dtype, result / len(inputs) if op is ReduceOp.MEAN else result)


@pytest.mark.parametrize("length", [0, 1, 7, 1009, 2 * CHUNK + 3])
@pytest.mark.parametrize(("op", "dtype"), POSSIBLE, ids=lambda value: value.label)
def test_a_fold_gives_the_bits_of_the_tree_in_numpy(op, dtype, length):
    for count in range(1, 8):
        inputs = random_inputs(dtype, count, length)
        before = [each.tobytes() for each in inputs]
        out = np.empty(length, dtype.numpy)

        fold(op, dtype, inputs, out)

        assert out.tobytes() == expected(op, dtype, inputs).tobytes()
        assert [each.tobytes() for each in inputs] == before


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_float], ids=lambda dtype: dtype.label)
def test_the_mean_of_floats_is_near_the_mean_in_f64(dtype, count):
    inputs = random_inputs(dtype, count, 1009)
    step = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}[dtype]
    wide = [decode(dtype, each).astype(np.float64) for each in inputs]
    out = np.empty(1009, dtype.numpy)

    fold(ReduceOp.MEAN, dtype, inputs, out)

    # Half a step for the last rounding, and what adding up in the accumulator may lose among large terms.
    lost = len(inputs) * np.finfo(dtype.accumulator.numpy).eps * np.max(np.abs(wide), axis=0)
    exact = np.mean(wide, axis=0)
    assert np.all(np.abs(decode(dtype, out) - exact) <= step / 2 * np.abs(exact) * 1.01 + lost)


@pytest.mark.parametrize("aliased", range(7))
@pytest.mark.parametrize("length", [1009, 2 * CHUNK + 3])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.I32], ids=lambda dtype: dtype.label)
def test_the_result_may_be_written_over_any_of_the_inputs(dtype, length, aliased):
    for count in range(aliased + 1, 8):
        inputs = random_inputs(dtype, count, length)
        right = expected(ReduceOp.SUM, dtype, inputs)

        fold(ReduceOp.SUM, dtype, inputs, inputs[aliased])

        assert inputs[aliased].tobytes() == right.tobytes()


def test_the_result_may_be_written_over_another_view_of_an_input():
    memory = np.arange(40, dtype=np.float32)
    inputs = [memory[part : part + 10] for part in (0, 10, 20, 30)]
    right = expected(ReduceOp.MEAN, DType.F32, inputs)

    fold(ReduceOp.MEAN, DType.F32, inputs, memory[20:30])

    assert memory[20:30].tobytes() == right.tobytes()


def test_additions_follow_the_tree_and_not_the_order_of_the_inputs():
    inputs = [np.array([value], np.float32) for value in (2**24, 1, 1, 1)]
    out = np.empty(1, np.float32)

    fold(ReduceOp.SUM, DType.F32, inputs, out)

    left_to_right = reduce(np.add, inputs)
    assert left_to_right[0] == 2**24
    assert out[0] == 2**24 + 2


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.label)
def test_narrow_floats_are_rounded_once_and_not_at_every_addition(dtype):
    inputs = [encode(dtype, np.array([value])) for value in (4096, 1, 1, 1, 1, 1, 1, 1)]
    small = encode(dtype, np.array([4096 + 7.0]))
    out = np.empty(1, dtype.numpy)

    fold(ReduceOp.SUM, dtype, inputs, out)

    assert out.tobytes() == small.tobytes()


def test_a_mean_is_divided_and_not_multiplied_by_a_rounded_inverse():
    inputs = [np.array([value], np.float32) for value in (5, 0, 0)]
    out = np.empty(1, np.float32)

    fold(ReduceOp.MEAN, DType.F32, inputs, out)

    assert out[0] == np.float32(5) / np.float32(3)
    assert out[0] != np.float32(5) * (np.float32(1) / np.float32(3))


@pytest.mark.parametrize("op", [op for op in ReduceOp if not op.is_bitwise], ids=lambda op: op.label)
@pytest.mark.parametrize("position", range(3))
def test_a_nan_in_any_input_reaches_the_result(op, position):
    for dtype in [dtype for dtype in DType if dtype.is_float]:
        inputs = [encode(dtype, np.ones(5)) for _ in range(3)]
        inputs[position] = encode(dtype, np.array([1, 1, np.nan, 1, 1]))
        out = np.empty(5, dtype.numpy)

        fold(op, dtype, inputs, out)

        assert np.isnan(decode(dtype, out)).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_float], ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT], ids=lambda op: op.label)
@pytest.mark.parametrize("count", [2, 4])
def test_overflow_becomes_infinity_without_a_warning(op, dtype, count):
    largest = {DType.F64: 1.7e308, DType.F32: 3.3e38, DType.F16: 65504, DType.BF16: 3.3e38}[dtype]
    inputs = [encode(dtype, np.array([largest])) for _ in range(count)]
    out = np.empty(1, dtype.numpy)

    fold(op, dtype, inputs, out)

    # The sum of f16 fits into f32, so its mean is the value itself.
    mean_fits = op is ReduceOp.MEAN and dtype is DType.F16
    assert decode(dtype, out)[0] == (largest if mean_fits else np.inf)


def test_infinity_minus_infinity_becomes_nan_without_a_warning():
    inputs = [np.array([np.inf], np.float32), np.array([-np.inf], np.float32)]
    folded = np.empty(1, np.float32)

    fold(ReduceOp.SUM, DType.F32, inputs, folded)

    assert np.isnan(folded[0])


def test_finishing_an_f16_that_is_too_large_gives_infinity_without_a_warning():
    out = np.empty(1, np.float16)

    finish(ReduceOp.SUM, DType.F16, np.array([1e6], np.float32), 2, out)

    assert out[0] == np.inf


def test_folding_leaves_the_callers_numpy_settings_alone():
    before = np.geterr()

    fold(ReduceOp.SUM, DType.F32, [np.ones(3, np.float32)] * 2, np.empty(3, np.float32))

    assert np.geterr() == before


def test_threads_fold_at_the_same_time():
    inputs = random_inputs(DType.F32, 4, 4 * CHUNK)
    right = expected(ReduceOp.SUM, DType.F32, inputs).tobytes()

    def work(_: int) -> bool:
        out = np.empty(4 * CHUNK, np.float32)
        fold(ReduceOp.SUM, DType.F32, inputs, out)
        return out.tobytes() == right

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(40)))

    assert all(results)


@pytest.mark.parametrize(("op", "dtype"), POSSIBLE, ids=lambda value: value.label)
def test_accumulate_and_finish_do_by_steps_what_fold_does_at_once(op, dtype):
    inputs = random_inputs(dtype, 2, 2 * CHUNK + 3)
    whole, stepwise = np.empty_like(inputs[0]), np.empty_like(inputs[0])
    accumulated = np.empty(len(whole), dtype.accumulator.numpy)

    accumulate(op, dtype, inputs, accumulated)
    before = accumulated.tobytes()
    finish(op, dtype, accumulated, 2, stepwise)
    fold(op, dtype, inputs, whole)

    assert stepwise.tobytes() == whole.tobytes()
    assert accumulated.tobytes() == before


def test_finishing_in_place_divides_in_place():
    accumulated = np.array([6, 9], np.float32)

    finish(ReduceOp.MEAN, DType.F32, accumulated, 3, accumulated)

    assert accumulated.tolist() == [2, 3]


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
def test_widening_copies_only_what_must_change(dtype):
    array = np.ones(3, dtype.numpy)

    wide = widen(dtype, array)

    assert wide.dtype == dtype.accumulator.numpy
    assert (wide is array) == (dtype not in NARROW)


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL], ids=lambda dtype: dtype.label)
def test_the_mean_of_integers_is_refused_before_anything_is_written(dtype):
    out = np.ones(3, dtype.numpy)

    with pytest.raises(ConfigError, match=f"{dtype.label}: use SUM and divide, or convert to f64"):
        check(ReduceOp.MEAN, dtype)
    with pytest.raises(ConfigError, match="mean of integers is no integer"):
        fold(ReduceOp.MEAN, dtype, [np.zeros(3, dtype.numpy)] * 2, out)
    assert out.tolist() == [1, 1, 1]


def test_floats_have_no_bitwise_operation():
    with pytest.raises(ConfigError, match="these are f16: view their bits as integers"):
        check(ReduceOp.BITWISE_XOR, DType.F16)


def test_every_other_pair_of_operation_and_type_is_allowed():
    for op, dtype in POSSIBLE:
        check(op, dtype)


def test_codes_and_labels_of_operations_stay_what_they_are():
    table = [(op.code, op.label) for op in ReduceOp]

    arithmetic = [(1, "sum"), (2, "mean"), (3, "max"), (4, "min"), (5, "product")]
    assert table == [*arithmetic, (6, "bitwise_and"), (7, "bitwise_or"), (8, "bitwise_xor")]


@pytest.mark.parametrize("op", ReduceOp, ids=lambda op: op.label)
def test_an_operation_is_found_by_code_and_by_label(op):
    assert ReduceOp.from_code(op.code) is op
    assert ReduceOp.parse(op.label) is op
    assert ReduceOp.parse(op) is op


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="code 9"):
        ReduceOp.from_code(9)
    with pytest.raises(ConfigError, match="'average' is no reduction: use one of sum, mean, max, min, product"):
        ReduceOp.parse("average")
